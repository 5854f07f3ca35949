"""A trace by name or file: what `sim bound` and experiment files may ask for, and traces made faster and shorter."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from millgate.core.settings import LaneSettings
from millgate.sim.jobs import Job
from millgate.sim.randomness import Streams
from millgate.sim.traces.mooncake import read_mooncake
from millgate.sim.traces.sessions import as_recorded, read_sessions
from millgate.sim.traces.synthetic import LENGTHS, jobs, steady
from millgate.sim.traces.tables import TraceError, read_table

_OF_SESSIONS = b'"requests"'
"""What each line of recorded sessions has, and no other trace."""


def open_trace(name: str, streams: Streams, rate_per_s: float, until_s: float) -> Iterator[Job]:
    """Return the jobs of a file, recognised by its form, or Poisson arrivals with the lengths of that name.

    Recorded sessions begin at random, so often that `rate_per_s` requests come on average. Raises ValueError naming what may
    be given.
    """
    if name in LENGTHS:
        return jobs(steady(rate_per_s, streams), LENGTHS[name], streams, until_s=until_s)
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"trace: {name!r} is neither a file nor one of {', '.join(LENGTHS)}")
    head = _head(path)
    if _OF_SESSIONS in head:
        return _begun(path, streams, rate_per_s)
    if path.suffix == ".jsonl" or head.lstrip(b"\xef\xbb\xbf").startswith(b"{"):
        return read_mooncake(path, streams)
    return read_table(path)


def has_its_own_times(name: str) -> bool:
    """Return whether a trace that can be opened says when each request comes: lengths by name and sessions come at a rate."""
    return name not in LENGTHS and _OF_SESSIONS not in _head(Path(name))


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as lines:
            return lines.readline()
    except OSError as error:
        raise ValueError(f"trace: {path} cannot be read: {error.strerror}") from None


def _begun(path: Path, streams: Streams, rate_per_s: float) -> Iterator[Job]:
    """Yield the turns of all sessions, as many in a second as were asked for."""
    recorded = [session for session in read_sessions(path) if session.turns]
    turns = sum(len(session.turns) for session in recorded)
    if not turns:
        raise TraceError(path, 1, "there is no request")
    begins = steady(rate_per_s * len(recorded) / turns, streams)
    yield from as_recorded(zip(begins, recorded, strict=False))


def within_lanes(jobs: Iterable[Job], lanes: Sequence[LaneSettings], name: str) -> Iterator[Job]:
    """Yield the same jobs; TraceError naming the trace at the first one for a lane that is none of these."""
    known = {lane.name for lane in lanes}
    for job in jobs:
        if job.lane is not None and job.lane not in known:
            raise TraceError(Path(name), 0, f"lane {job.lane!r} is not one of {', '.join(sorted(known))}")
        yield job


def faster(jobs: Iterable[Job], factor: float) -> Iterator[Job]:
    """Yield the same jobs with every gap divided by `factor`."""
    return (job._replace(at_s=job.at_s / factor) for job in jobs)


def between(jobs: Iterable[Job], begin_s: float, end_s: float) -> Iterator[Job]:
    """Yield what comes within [begin, end), moved so that it starts at 0."""
    for job in jobs:
        if job.at_s >= end_s:
            return
        if job.at_s >= begin_s:
            yield job._replace(at_s=job.at_s - begin_s)

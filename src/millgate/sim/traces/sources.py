"""A trace by name or file: what `sim bound` and experiment files may ask for, and traces made faster and shorter."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from millgate.sim.jobs import Job
from millgate.sim.randomness import Streams
from millgate.sim.traces.mooncake import read_mooncake
from millgate.sim.traces.sessions import AgentSession, as_recorded, read_sessions
from millgate.sim.traces.synthetic import LENGTHS, jobs, steady
from millgate.sim.traces.tables import in_order, read_azure, read_clients27


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
    with path.open(encoding="utf-8") as lines:
        head = lines.readline()
    if '"requests"' in head:
        return _begun(read_sessions(path), streams, rate_per_s)
    if path.suffix == ".jsonl":
        return read_mooncake(path, streams)
    return in_order(read_clients27(path) if head.startswith("req_time_s") else read_azure(path), path, 2)


def _begun(sessions: Iterable[AgentSession], streams: Streams, rate_per_s: float) -> Iterator[Job]:
    """Yield the turns of all sessions, as many in a second as were asked for."""
    recorded = [session for session in sessions if session.turns]
    turns = sum(len(session.turns) for session in recorded)
    return as_recorded(
        zip(steady(rate_per_s * len(recorded) / max(1, turns), streams), recorded, strict=False)
    )


def faster(jobs: Iterable[Job], factor: float) -> Iterator[Job]:
    """Yield the same jobs with every gap divided by `factor`."""
    if not factor > 0.0:
        raise ValueError(f"factor: must be above 0, got {factor}")
    return (job._replace(at_s=job.at_s / factor) for job in jobs)


def between(jobs: Iterable[Job], begin_s: float, end_s: float) -> Iterator[Job]:
    """Yield what comes within [begin, end), moved so that it starts at 0."""
    for job in jobs:
        if job.at_s >= end_s:
            return
        if job.at_s >= begin_s:
            yield job._replace(at_s=job.at_s - begin_s)


def first(jobs: Iterable[Job], count: int) -> Iterator[Job]:
    """Yield at most that many jobs."""
    return islice(iter(jobs), count)

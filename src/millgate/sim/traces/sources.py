"""A trace by name or file: what `sim bound` and experiment files may ask for, and traces made faster and shorter."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from numpy.random import Generator

from millgate.core.settings import LaneSettings
from millgate.sim.jobs import PREFIX_UNIT_TOKENS, Job
from millgate.sim.randomness import Streams
from millgate.sim.traces.synthetic import LENGTHS, jobs, steady
from millgate.sim.traces.tables import MOST_TOKENS, TraceError, in_order, read_lines, read_table

MOST_UNITS = 1 << 20
"""Units of one session; the number of a session times this keeps ids of different sessions apart."""
QUANTUM_S = 3.0
_OF_SESSIONS = b'"requests"'
"""What each line of recorded sessions has, and no other trace."""


class SessionTurn(NamedTuple):
    """One request of a session; `job.at_s` is seconds since the session began, as recorded."""

    job: Job
    think_s: float


class AgentSession(NamedTuple):
    """One agent's work: turns in order, each asked `think_s` after the end of the one before."""

    number: int
    turns: tuple[SessionTurn, ...]


def read_sessions(path: Path) -> Iterator[AgentSession]:
    """Yield the sessions of coding agents in a file, one JSON object a line; TraceError names the line that makes no sense.

    Source: callanjfox/kv-cache-tester, Apache-2.0 (Claude Code sessions), compacted: the 512-token blocks of every
    prompt by number, which count from 0 in every session; blocks of different sessions are unrelated. The partial last
    block of a prompt has no number. A turn's think time lies between the end of the turn before and its own beginning.
    Turns of subagents are played where they were recorded, one after the other with those of their parent.
    """
    for number, line in read_lines(path, _Session, "session"):
        if line.block_tokens != PREFIX_UNIT_TOKENS:
            raise TraceError(path, number, f"block_tokens: must be {PREFIX_UNIT_TOKENS}")
        yield AgentSession(number, tuple(_turns(line, number)))


class _Request(msgspec.Struct):
    """One request of the file; `depth` is above 0 for those of subagents."""

    t: Annotated[float, msgspec.Meta(ge=0)]
    prompt_tokens: Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)] = msgspec.field(name="in")
    output_tokens: Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)] = msgspec.field(name="out")
    blocks: list[tuple[int, Annotated[int, msgspec.Meta(ge=0, lt=MOST_UNITS)]]]
    think_s: Annotated[float, msgspec.Meta(ge=0)] | None = None
    depth: int = 0


class _Session(msgspec.Struct):
    """One line of the file."""

    block_tokens: int
    requests: list[_Request]


def _turns(line: _Session, number: int) -> Iterator[SessionTurn]:
    units = [tuple(_units(request, number)) for request in line.requests]
    later: dict[int, tuple[int, ...]] = {}
    turns = []
    for request, own in zip(reversed(line.requests), reversed(units), strict=True):
        following = later.get(request.depth, ())
        later[request.depth] = own
        prompt, output = max(1, request.prompt_tokens), max(1, request.output_tokens)
        ids = own
        if following[: len(own)] == own:
            # The next prompt goes on from here, so it says how the units of the answer are named.
            ids = following[: max(len(own), (prompt + output) // PREFIX_UNIT_TOKENS)]
        job = Job(request.t, prompt, output, prefix_ids=ids, session=number)
        turns.append(SessionTurn(job, request.think_s or 0.0))
    return reversed(turns)


def _units(request: _Request, number: int) -> Iterator[int]:
    first_id = number * MOST_UNITS
    return chain.from_iterable(
        range(first_id + first, first_id + first + count) for first, count in request.blocks
    )


def read_mooncake(path: Path, streams: Streams) -> Iterator[Job]:
    """Yield the requests of a file in Mooncake's form in order; equal seeds spread them equally.

    Source: kvcache-ai/Mooncake, FAST25 release, Apache-2.0. Its timestamps (ms) come in steps of three seconds. Requests
    that share one are spread over the three seconds that follow, at random and in their order, or every step would be
    a burst that never was. One that is alone at its time comes then. The last id of a prompt may name a block that is not full; it is left out, since no engine finds
    part of a block again.
    """
    dice, last = streams.generator("mooncake jitter"), list[Job]()
    for at_s, together in groupby(in_order(_mooncake(path), path), key=lambda job: job.at_s):
        if last:
            yield from _spread(last, min(QUANTUM_S, at_s - last[0].at_s), dice)
        last = list(together)
    yield from _spread(last, QUANTUM_S, dice)


def _spread(jobs: list[Job], over_s: float, dice: Generator) -> Iterator[Job]:
    """Yield these jobs at random within so many seconds, a lone one at its time: a file with finer times keeps its own."""
    for job, offset in zip(jobs, sorted(dice.random(len(jobs)).tolist()), strict=True):
        yield job._replace(at_s=job.at_s + over_s * offset) if jobs[1:] else job


class _MooncakeRequest(msgspec.Struct):
    """One request of the file."""

    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
    output_length: Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
    hash_ids: tuple[int, ...] = ()
    tenant: str = ""
    lane: str | None = None
    model: str = ""
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None


def _mooncake(path: Path) -> Iterator[tuple[int, Job]]:
    for number, line in read_lines(path, _MooncakeRequest, "request"):
        prompt, output = max(1, line.input_length), max(1, line.output_length)
        named = (line.tenant, line.lane, line.max_tokens)
        ids = line.hash_ids[: line.input_length // PREFIX_UNIT_TOKENS]
        yield number, Job(line.timestamp / 1e3, prompt, output, *named, prefix_ids=ids, adapter=line.model)


def open_trace(name: str, streams: Streams, rate_per_s: float, until_s: float) -> Iterator[Job]:
    """Return the jobs of a file, recognised by its form, or Poisson arrivals with the lengths of that name.

    Of recorded sessions `rate_per_s` requests come on average. Raises ValueError naming what may be given.
    """
    if name in LENGTHS:
        return jobs(steady(rate_per_s, streams), LENGTHS[name], streams, until_s=until_s)
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"trace: {name!r} is neither a file nor one of {', '.join(LENGTHS)}")
    head = _head(path)
    if _OF_SESSIONS in head:
        return _together(path, streams, rate_per_s)
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


def _together(path: Path, streams: Streams, rate_per_s: float) -> Iterator[Job]:
    """Yield the turns of all sessions in the time in which they are as many in a second as were asked for.

    Sessions last for hours. So each begins at random, and what lies behind the end comes at the beginning, as a session of its own.
    """
    recorded = [session for session in read_sessions(path) if session.turns]
    turns = sum(len(session.turns) for session in recorded)
    if not turns:
        raise TraceError(path, 1, "there is no request")
    lasts_s = turns / rate_per_s
    begins = streams.draws("gaps", lambda dice, count: dice.uniform(0.0, lasts_s, count))
    apart = recorded[-1].number
    coming = [_wrapped(session, begins.next(), lasts_s, apart) for session in recorded]
    yield from sorted(chain.from_iterable(coming), key=lambda job: job.at_s)


def _wrapped(session: AgentSession, begins_s: float, lasts_s: float, apart: int) -> Iterator[Job]:
    for turn in session.turns:
        times, at_s = divmod(begins_s + turn.job.at_s, lasts_s)
        further = apart * int(times)
        ids = tuple([unit + further * MOST_UNITS for unit in turn.job.prefix_ids])
        yield turn.job._replace(at_s=at_s, prefix_ids=ids, session=session.number + further)


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

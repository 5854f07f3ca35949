"""Recorded sessions of coding agents: one JSON object a line, with the 512-token blocks of every prompt by number.

Source: callanjfox/kv-cache-tester, Apache-2.0 (Claude Code sessions), compacted. Block numbers count from 0 in every
session, and blocks of different sessions are unrelated. The partial last block of a prompt has no number. A turn's think time
lies between the end of the turn before and its own beginning.
"""

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import chain
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from millgate.sim.jobs import PREFIX_UNIT_TOKENS, Job
from millgate.sim.traces.tables import MOST_TOKENS, TraceError, read_lines

MOST_UNITS = 1 << 20
"""Units of one session; the number of a session times this keeps ids of different sessions apart."""


class SessionTurn(NamedTuple):
    """One request of a session; `job.at_s` is seconds since the session began, as recorded."""

    job: Job
    think_s: float


class AgentSession(NamedTuple):
    """One agent's work: turns in order, each asked `think_s` after the end of the one before."""

    number: int
    turns: tuple[SessionTurn, ...]


def read_sessions(path: Path) -> Iterator[AgentSession]:
    """Yield the sessions of a file, numbered from 1; TraceError names the line that makes no sense.

    Turns of subagents are played where they were recorded, one after the other with those of their parent.
    """
    for number, line in read_lines(path, _Line, "session"):
        if line.block_tokens != PREFIX_UNIT_TOKENS:
            raise TraceError(path, number, f"block_tokens: must be {PREFIX_UNIT_TOKENS}")
        yield AgentSession(number, tuple(_turns(line, number)))


def as_recorded(begun: Iterable[tuple[float, AgentSession]]) -> Iterator[Job]:
    """Yield the turns of sessions that begin at these times, in order of time, however long earlier turns take."""
    return merge(*[_shifted(at_s, session) for at_s, session in begun], key=lambda job: job.at_s)


def _shifted(begins_s: float, session: AgentSession) -> Iterator[Job]:
    return (turn.job._replace(at_s=begins_s + turn.job.at_s) for turn in session.turns)


class _Request(msgspec.Struct):
    """One request of the file; `depth` is above 0 for those of subagents."""

    t: Annotated[float, msgspec.Meta(ge=0)]
    prompt_tokens: Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)] = msgspec.field(name="in")
    output_tokens: Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)] = msgspec.field(name="out")
    blocks: list[tuple[int, Annotated[int, msgspec.Meta(ge=0, lt=MOST_UNITS)]]]
    think_s: Annotated[float, msgspec.Meta(ge=0)] | None = None
    depth: int = 0


class _Line(msgspec.Struct):
    """One line of the file."""

    block_tokens: int
    requests: list[_Request]


def _turns(line: _Line, number: int) -> Iterator[SessionTurn]:
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

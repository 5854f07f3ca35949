"""Mooncake's traces: one JSON object a line with timestamp (ms), lengths and the hashes of 512-token blocks.

Source: kvcache-ai/Mooncake, FAST25 release, Apache-2.0. Its timestamps come in steps of three seconds. Requests
that share one are spread over the three seconds that follow, at random and in their order, or every step would be
a burst that never was. The last id of a prompt may name a block that is not full; it is left out, since no engine finds
part of a block again.
"""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated

import msgspec
from numpy.random import Generator

from millgate.sim.jobs import PREFIX_UNIT_TOKENS, Job
from millgate.sim.randomness import Streams
from millgate.sim.traces.tables import MOST_TOKENS, in_order, read_lines

QUANTUM_S = 3.0


def read_mooncake(path: Path, streams: Streams) -> Iterator[Job]:
    """Yield the requests of a file in order; equal seeds spread them equally."""
    dice, last = streams.generator("mooncake jitter"), list[Job]()
    for at_s, together in groupby(in_order(_lines(path), path), key=lambda job: job.at_s):
        if last:
            yield from _spread(last, min(QUANTUM_S, at_s - last[0].at_s), dice)
        last = list(together)
    yield from _spread(last, QUANTUM_S, dice)


def _spread(jobs: list[Job], over_s: float, dice: Generator) -> Iterator[Job]:
    """Yield these jobs at random within so many seconds: a file with finer times keeps the order of its own."""
    for job, offset in zip(jobs, sorted(dice.random(len(jobs)).tolist()), strict=True):
        yield job._replace(at_s=job.at_s + over_s * offset)


class _Line(msgspec.Struct):
    """One line of the file."""

    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
    output_length: Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
    hash_ids: tuple[int, ...] = ()
    tenant: str = ""
    lane: str | None = None
    model: str = ""
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None


def _lines(path: Path) -> Iterator[tuple[int, Job]]:
    for number, line in read_lines(path, _Line, "request"):
        prompt, output = max(1, line.input_length), max(1, line.output_length)
        named = (line.tenant, line.lane, line.max_tokens)
        ids = line.hash_ids[: line.input_length // PREFIX_UNIT_TOKENS]
        yield number, Job(line.timestamp / 1e3, prompt, output, *named, prefix_ids=ids, adapter=line.model)

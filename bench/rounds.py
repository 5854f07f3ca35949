"""The rounds of the bench: the same load on each proxy in turn, A-B-C-A-B-C, and what it cost them."""

import itertools
import os
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench import load
from bench.processes import Process, cpu_s

JSON_USERS = 32
JSON_REQUESTS = 20_000

STREAM_USERS = 64
STREAMS = 640

PACED_SHARE = 0.5
"""How much of one core the gate has to do in the paced rounds; every gate gets the same rate."""
PACED_S = 3.0

YIELD_USERS = 32
YIELDS = 30_000

WARM_REQUESTS = 2_000
"""Sent to each proxy before the first round: caches fill, adaptive interpreters specialise."""

_numbers = itertools.count()


class Cost(NamedTuple):
    """One proxy's CPU in one round, in microseconds per request, chunk or yield, with what it was counted over.

    `per_s` is what a closed loop got through, `bench_us` the CPU of load and engine together for the same
    unit, `reads_per_event` 1 when every event came on its own and less where a proxy or the kernel merged some.
    """

    cpu_us: float
    per_s: float
    bench_us: float
    reads_per_event: float = 1.0


def fresh(count: int) -> range:
    """Return numbers that no request of this run has had."""
    start = next(_numbers) * 1_000_000
    return range(start, start + count)


async def warm(proxies: Sequence[Process]) -> None:
    """Send each proxy a little of everything, unmeasured."""
    for proxy in proxies:
        await load.send(proxy.port, fresh(WARM_REQUESTS), users=JSON_USERS, stream=False)
        await load.send(proxy.port, fresh(STREAM_USERS), users=STREAM_USERS, stream=True)


async def _measure(
    proxy: Process, engine: Process, requests: int, users: int, kind: str, per_s: float | None = None
) -> Cost:
    """Run one round and divide the CPU by what was delivered."""
    before = (proxy.cpu_s(), engine.cpu_s(), cpu_s(os.getpid()))
    status = b"503" if kind == "yield" else b"200"
    served = await load.send(
        proxy.port, fresh(requests), users=users, stream=kind == "chunk", status=status, per_s=per_s
    )
    spent = [
        now - then
        for now, then in zip((proxy.cpu_s(), engine.cpu_s(), cpu_s(os.getpid())), before, strict=True)
    ]
    units = served.chunks if kind == "chunk" else served.answers
    events = served.chunks + served.answers
    return Cost(
        cpu_us=spent[0] * 1e6 / units,
        per_s=units / served.elapsed_s,
        bench_us=(spent[1] + spent[2]) * 1e6 / units,
        reads_per_event=served.reads / events if kind == "chunk" else 1.0,
    )


async def json_round(proxy: Process, engine: Process) -> Cost:
    """Return the cost of one whole JSON request, over `JSON_REQUESTS` of them."""
    return await _measure(proxy, engine, JSON_REQUESTS, JSON_USERS, "json")


async def paced_round(proxy: Process, engine: Process, per_s: float) -> Cost:
    """Return the cost of one whole JSON request when `per_s` of them leave every second, whatever comes back."""
    return await _measure(proxy, engine, int(per_s * PACED_S), JSON_USERS, "json", per_s)


async def chunk_round(proxy: Process, engine: Process) -> Cost:
    """Return the cost of one delivered chunk, its share of the request included, over `STREAMS` whole streams."""
    return await _measure(proxy, engine, STREAMS, STREAM_USERS, "chunk")


async def yield_round(gate: Process, engine: Process) -> Cost:
    """Return the cost of one yield by a gate that holds nothing and whose cap is full."""
    holder = load.Holder()
    await holder.arrive(gate.port)
    try:
        return await _measure(gate, engine, YIELDS, YIELD_USERS, "yield")
    finally:
        holder.leave()


def median(costs: Sequence[Cost]) -> Cost:
    """Return the median of each column."""
    return Cost(*(statistics.median(column) for column in zip(*costs, strict=True)))


def ratios(costs: Sequence[Cost], others: Sequence[Cost]) -> Iterator[float]:
    """Return the CPU ratio of each pair of rounds that ran one after the other."""
    return (cost.cpu_us / other.cpu_us for cost, other in zip(costs, others, strict=True))

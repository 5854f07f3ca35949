"""Four gates, one engine with a cap, skewed load, and one fault after the other: the engine's own peak, goodput, recovery."""

import asyncio
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from lab.cluster.balancer import Balancer
from lab.cluster.crowd import HOT_SHARE, Crowd
from lab.cluster.faults import FAULTS, planned
from lab.cluster.processes import CAP, REPLICAS, Engine, Stack, until

CLIENTS, MAX_TOKENS = 64, 80
_LOOK_S, _FULL, _STEADY_S = 0.1, 0.9, 1.0
# A fault lasts 6 s at most. What the engine lacks so long after it has begun is the crowd's, which moves from replica to replica.
_OVER_S = 15.0
_WARM_S = 5.0


class Struck(NamedTuple):
    """What one fault did: the engine's peak until the next one, answers a second against one gate, and how long it was not full."""

    at_s: float
    fault: str
    peak: int
    goodput: float
    recovered_s: float | None


class CapReport(NamedTuple):
    """One run: `alone_per_s` are the answers of one gate without faults; `shares` what replicas may run at the end, `running` what runs."""

    struck: list[Struck]
    alone_per_s: float
    goodput: float
    peak: int
    statuses: dict[int, int]
    shares: list[int]
    running: int


class _Looks:
    """The engine's gauge over time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.seen: list[tuple[float, int]] = []

    async def run(self) -> None:
        """Look ten times a second."""
        while True:
            stats = await asyncio.to_thread(self._engine.stats)
            self.seen.append((time.monotonic(), int(stats["running"]) + int(stats["waiting"])))
            await asyncio.sleep(_LOOK_S)

    def recovered_s(self, struck_at: float, until_at: float) -> float | None:
        """Return how long after the fault the engine was last below nine tenths of its cap for a second, within 15 s; None where it still is."""
        below_until, until_at = struck_at, min(until_at, struck_at + _OVER_S)
        after = [(at, count) for at, count in self.seen if struck_at <= at < until_at]
        for at, _ in after:
            second = [count for when, count in after if at <= when < at + _STEADY_S]
            if sum(second) < _FULL * CAP * len(second):
                below_until = at + _LOOK_S
        return None if below_until > until_at - _STEADY_S else below_until - struck_at


async def measure(
    folder: Path, seconds: float, apart_s: float, seed: int, policy: str, *, balanced: bool
) -> CapReport:
    """Run one gate for a fifth of the time, then four with faults, which do by this policy without their store; clients come over a balancer, or anywhere."""
    engine = Engine(folder)
    await engine.run.ready()
    settings = {"url": engine.url, "max_inflight": CAP}
    try:
        alone_per_s = await _alone(folder / "one", settings, max(10.0, seconds / 5.0), seed)
        engine.reset()
        stack = Stack(folder / "four", REPLICAS, settings, cluster={"when_store_is_gone": policy})
        try:
            await stack.start()
            plan, balancer = planned(seconds, apart_s, seed), Balancer(stack.gates) if balanced else None
            return await _with_faults(stack, engine, plan, seconds, alone_per_s, seed, balancer)
        finally:
            await stack.close()
    finally:
        engine.run.kill()


async def _alone(folder: Path, settings: dict[str, Any], seconds: float, seed: int) -> float:
    stack = Stack(folder, 1, settings)
    await stack.start()
    crowd = Crowd(lambda: [stack.gates[0].port], CLIENTS, MAX_TOKENS, seed, HOT_SHARE)
    crowd.start()
    await asyncio.sleep(_WARM_S)
    begin = time.monotonic()
    await asyncio.sleep(seconds)
    per_s = crowd.good_between(begin, time.monotonic())
    await crowd.stop()
    await stack.close()
    return per_s


async def _with_faults(
    stack: Stack,
    engine: Engine,
    plan: list[tuple[float, str, int]],
    seconds: float,
    alone_per_s: float,
    seed: int,
    balancer: Balancer | None,
) -> CapReport:
    ports = balancer.ports if balancer is not None else lambda: [gate.port for gate in stack.gates]
    crowd, looks = Crowd(ports, CLIENTS, MAX_TOKENS, seed, HOT_SHARE), _Looks(engine)
    if balancer is not None:
        balancer.start()
    crowd.start()
    looking = asyncio.create_task(looks.run())
    await asyncio.sleep(_WARM_S)
    begin, marks = time.monotonic(), []
    for at_s, name, lot in plan:
        await asyncio.sleep(max(0.0, begin + at_s - time.monotonic()))
        marks.append((time.monotonic(), name, await _peak(engine)))
        await FAULTS[name](stack, await asyncio.to_thread(_busiest_or, stack, lot))
    await asyncio.sleep(max(0.0, begin + seconds - time.monotonic()))
    end = time.monotonic()
    marks.append((end, "", await _peak(engine)))
    looking.cancel()
    await crowd.stop()
    if balancer is not None:
        balancer.stop()
    struck = [
        Struck(
            at - begin, name, peak, crowd.good_between(at, then) / alone_per_s, looks.recovered_s(at, then)
        )
        for (at, name, _), (then, _, peak) in pairwise(marks)
    ]
    shares, running = list[int](), 0

    def is_whole() -> bool:
        # What is told is what was seen whole: idle replicas still pass shares to each other.
        nonlocal shares, running
        shares, running = _shares(stack), _running(engine)
        return running == 0 and sum(shares) == CAP

    await until(is_whole, 30.0)
    return CapReport(
        struck,
        alone_per_s,
        crowd.good_between(begin, end) / alone_per_s,
        max(peak for _, _, peak in marks),
        crowd.statuses,
        shares,
        running,
    )


def _busiest_or(stack: Stack, lot: int) -> Any:
    """Return the replica that runs most, or one by lot every third time."""
    if lot % 3 == 0:
        return stack.gates[lot % len(stack.gates)]
    return max(stack.gates, key=lambda gate: int(gate.state()["engines"][0]["running"]))


async def _peak(engine: Engine) -> int:
    peak = int((await asyncio.to_thread(engine.stats))["peak_running_and_waiting"])
    await asyncio.to_thread(engine.reset)
    return peak


def _running(engine: Engine) -> int:
    stats = engine.stats()
    return int(stats["running"]) + int(stats["waiting"])


def _shares(stack: Stack) -> list[int]:
    return [int(gate.state()["engines"][0]["limit"]) for gate in stack.gates]


def table(report: CapReport) -> str:
    """Return the report as Markdown."""
    rows = [
        f"one gate without faults: {report.alone_per_s:.2f} answers a second; goodput is relative to that",
        "",
        "| at | fault | peak of the engine, cap 16 | goodput until the next fault | full again after |",
        "|---|---|---|---|---|",
    ]
    for each in report.struck:
        again = "never" if each.recovered_s is None else f"{each.recovered_s:.1f} s"
        rows.append(f"| {each.at_s:.0f} s | {each.fault} | {each.peak} | {each.goodput:.3f} | {again} |")
    rows.append(f"| whole run | {len(report.struck)} faults | {report.peak} | {report.goodput:.3f} | |")
    shares = " + ".join(str(share) for share in report.shares)
    rows += [
        "",
        f"At the end {report.running} run, and the replicas' shares are {shares} = {sum(report.shares)} of {CAP}.",
    ]
    rows.append(f"Statuses, 0 for a connection that failed: {dict(sorted(report.statuses.items()))}")
    return "\n".join(rows)

"""Redis gone for a while, under each policy: what is answered, what runs, and how long a request takes before and meanwhile."""

import asyncio
import time
from pathlib import Path
from typing import NamedTuple

from lab.cluster.crowd import Crowd, ask
from lab.cluster.processes import CAP, LEASE_S, REPLICAS, Engine, Stack, until

POLICIES = ("share", "closed", "open")
CLIENTS, MAX_TOKENS = 64, 40
_SLACK_S = 30.0
_PROBES = 40


class OutageReport(NamedTuple):
    """One policy: how many replicas say that they are ready meanwhile, the engine's peak, answers a second, and seconds of a request alone."""

    policy: str
    gone_s: float
    ready: int
    peak: int
    answered_per_s: float
    before_s: float
    meanwhile_s: float
    recovered: bool


async def measure(folder: Path, policy: str, seconds: float, seed: int) -> OutageReport:
    """Take Redis away for so long, first with single requests, then with a crowd for a lease's time at least, and give it back."""
    engine = Engine(folder)
    await engine.run.ready()
    stack = Stack(
        folder / "gates",
        REPLICAS,
        {"url": engine.url, "max_inflight": CAP},
        cluster={"when_store_is_gone": policy},
    )
    assert stack.redis is not None
    try:
        await stack.start()
        before_s = await _longest_s(stack)
        gone_at = time.monotonic()
        stack.redis.kill()
        await until(lambda: _all_say(stack, "degraded"), LEASE_S + _SLACK_S)
        ready = sum([bool(gate.readiness()["ready"]) for gate in stack.gates])
        meanwhile_s = await _longest_s(stack)
        await asyncio.to_thread(engine.reset)
        crowd = Crowd(lambda: [gate.port for gate in stack.gates], CLIENTS, MAX_TOKENS, seed, 0.0)
        crowd.start()
        crowded_at = time.monotonic()
        await asyncio.sleep(max(LEASE_S, gone_at + seconds - crowded_at))
        per_s = crowd.good_between(crowded_at, time.monotonic())
        peak = int((await asyncio.to_thread(engine.stats))["peak_running_and_waiting"])
        gone_s = time.monotonic() - gone_at
        stack.redis.start()
        recovered = await until(stack.is_leased, LEASE_S + _SLACK_S)
        await crowd.stop()
        return OutageReport(policy, gone_s, ready, peak, per_s, before_s, meanwhile_s, recovered)
    finally:
        await stack.close()
        engine.run.kill()


def _all_say(stack: Stack, state: str) -> bool:
    return all(str(gate.readiness()["detail"]["cluster"]).startswith(state) for gate in stack.gates)


async def _longest_s(stack: Stack) -> float:
    """Return how long nineteen in twenty requests take at most that come one by one, to each replica in turn."""
    times = []
    for number in range(_PROBES):
        began = time.monotonic()
        await ask(stack.gates[number % len(stack.gates)].port, f"probe {number}", 1)
        times.append(time.monotonic() - began)
    return sorted(times)[int(0.95 * len(times))]


def table(reports: list[OutageReport]) -> str:
    """Return the reports as Markdown."""
    rows = [
        f"Redis is gone for {max(each.gone_s for each in reports):.0f} s; {REPLICAS} replicas, a cap of {CAP}, one crowd at all of them:",
        "",
        "| policy | replicas that are ready | peak of the engine | answers a second | one request before, p95 | meanwhile | all leased again |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in reports:
        refused = "refused in " if each.policy == "closed" else ""
        rows.append(
            f"| {each.policy} | {each.ready} | {each.peak} | {each.answered_per_s:.1f} | {each.before_s * 1000:.0f} ms "
            f"| {refused}{each.meanwhile_s * 1000:.0f} ms | {'yes' if each.recovered else 'no'} |"
        )
    return "\n".join(rows)

"""A quota of tokens over four gates, with the same faults: what leaves the gates in any window, and how much of the quota is used.

The engine is a server of this process that answers at once, and notes when each request comes and how many tokens it takes.
"""

import asyncio
import json
import time
from pathlib import Path
from typing import NamedTuple

from lab.cluster.crowd import HOT_SHARE, Crowd
from lab.cluster.faults import FAULTS, planned
from lab.cluster.processes import REPLICAS, Stack
from lab.upstream import answers
from lab.upstream.fake_upstream import FakeUpstream, ScriptedConnection

RATE_PER_S, BURST_S = 1000.0, 5.0
CLIENTS, MAX_TOKENS = 40, 50
_PROMPT_TOKENS = 10
_WARM_S = 8.0


class QuotaReport(NamedTuple):
    """One run: `most_share` is the largest part of what any window allows that left in it, `used_share` the part of the quota that was used."""

    load: str
    faults: int
    requests: int
    most_share: float
    used_share: float


class _Notes:
    """What came to the engine: when, and how many tokens."""

    def __init__(self) -> None:
        self.taken: list[tuple[float, int]] = []

    async def answer(self, asked: ScriptedConnection) -> None:
        """Answer a chat at once, and nothing else."""
        if not asked.request.target.startswith(b"/v1/chat"):
            await asked.send(answers.whole(b"{}", 404))
            return
        tokens = _PROMPT_TOKENS + int(asked.request.json()["max_tokens"])
        self.taken.append((time.monotonic(), tokens))
        await asked.send(answers.whole(json.dumps(_completion(tokens)).encode()))


def _completion(tokens: int) -> dict[str, object]:
    usage = {
        "prompt_tokens": _PROMPT_TOKENS,
        "completion_tokens": tokens - _PROMPT_TOKENS,
        "total_tokens": tokens,
    }
    message = {"role": "assistant", "content": "so"}
    choice = {"index": 0, "message": message, "finish_reason": "length"}
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "any",
        "choices": [choice],
        "usage": usage,
    }


async def measure(
    folder: Path, seconds: float, apart_s: float, seed: int, policy: str, *, skewed: bool
) -> QuotaReport:
    """Let four gates share the quota under faults, with clients at all of them alike or most at one; without their store they do by this policy."""
    notes, plan = _Notes(), planned(seconds, apart_s, seed)
    rule = {"name": "all", "tpm": round(60 * RATE_PER_S), "burst": f"{BURST_S:g}s"}
    async with FakeUpstream(notes.answer) as upstream:
        engine, cluster = {"url": upstream.url, "max_inflight": 256}, {"when_store_is_gone": policy}
        stack = Stack(folder, REPLICAS, engine, quotas=[rule], cluster=cluster)
        try:
            await stack.start()
            crowd = Crowd(
                lambda: [gate.port for gate in stack.gates], CLIENTS, MAX_TOKENS, seed, HOT_SHARE * skewed
            )
            crowd.start()
            await asyncio.sleep(_WARM_S)
            begin = time.monotonic()
            for at_s, name, lot in plan:
                await asyncio.sleep(max(0.0, begin + at_s - time.monotonic()))
                await FAULTS[name](stack, stack.gates[lot % REPLICAS])
            await asyncio.sleep(max(0.0, begin + seconds - time.monotonic()))
            end = time.monotonic()
            await crowd.stop()
        finally:
            await stack.close()
    used = sum(tokens for at, tokens in notes.taken if begin <= at < end)
    return QuotaReport(
        "most at one gate" if skewed else "even",
        len(plan),
        len(notes.taken),
        largest_share(notes.taken),
        used / (RATE_PER_S * (end - begin)),
    )


def largest_share(taken: list[tuple[float, int]]) -> float:
    """Return the most that left in any window, as a part of burst + rate x window.

    A bucket that is drained at the rate holds the most by which any window that ends now is beyond the rate; INV-6 bounds that by the
    burst.
    """
    level = most = last_at = 0.0
    for at, tokens in taken:
        level = max(0.0, level - RATE_PER_S * (at - last_at)) + tokens
        most, last_at = max(most, level), at
    return most / (RATE_PER_S * BURST_S)


def table(reports: list[QuotaReport]) -> str:
    """Return the reports as Markdown."""
    title = (
        f"A quota of {60 * RATE_PER_S:,.0f} tokens a minute with a burst of {BURST_S:g} s, over {REPLICAS} gates. Beyond the rate any "
        "window may have one burst (INV-6):"
    )
    head = "| load | faults | requests | most beyond the rate in any window, of the burst | quota used |"
    rows = [
        f"| {each.load} | {each.faults} | {each.requests} | {each.most_share:.2f} | {each.used_share:.3f} |"
        for each in reports
    ]
    return "\n".join([title, "", head, "|---|---|---|---|---|", *rows])

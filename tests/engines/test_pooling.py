"""Embeddings before a real engine: whole answers without output tokens teach the gate, and overload is refused in time."""

import asyncio
import time
from collections import Counter

import openai

from engines.conftest import Bench
from engines.findings import note
from engines.process import Engine
from engines.watch import Watch
from millgate.core.words import Reason

WORDS = 40
"""Of one text, some 200 tokens: on two CPU cores the engine takes about a second for eight of them."""
LEAST_PATIENCE_S = 5.0
PATIENCE_LONE = 5.0
"""Users wait for so many times what a lone embedding takes: an engine on a slow machine is no slower to its users."""
RUN_PATIENCES, WARM_UP_PATIENCES = 8.0, 2.0
AT_ONCE = 8
"""Times the cap."""


class _Answers:
    """What users were told, and when each embedding came, in a run before users of this patience."""

    def __init__(self, patience_s: float) -> None:
        self.seconds = RUN_PATIENCES * patience_s
        self.told: Counter[str] = Counter()
        self.at: list[float] = []
        self._warm_up_s = WARM_UP_PATIENCES * patience_s

    def per_s(self) -> float:
        """Return embeddings a second after the warm-up."""
        counted = sum(self._warm_up_s <= at < self.seconds for at in self.at)
        return counted / (self.seconds - self._warm_up_s)


def _text(number: int) -> str:
    """Return a text of its own from its first word on: no prefix is shared."""
    return " ".join(f"{number}-{word % 97}" for word in range(WORDS))


async def _user(
    client: openai.AsyncOpenAI, engine: str, number: int, began: float, answers: _Answers, *, retries: int
) -> None:
    """Ask for one embedding after the other, with the retries of the SDK, until the time is over."""
    client = client.with_options(max_retries=retries)
    asked = 0
    while time.monotonic() - began < answers.seconds:
        asked += 1
        try:
            await client.embeddings.create(
                model=engine, input=_text(1000 * number + asked), encoding_format="float"
            )
        except openai.APIStatusError as refusal:
            reason = refusal.response.headers.get("x-millgate-reason")
            answers.told[
                f"refused {reason}" if refusal.status_code in {429, 503} else str(refusal.status_code)
            ] += 1
        else:
            answers.told["good"] += 1
            answers.at.append(time.monotonic() - began)


async def _users(url: str, engine: str, at_once: int, patience_s: float, *, retries: int) -> _Answers:
    answers, began = _Answers(patience_s), time.monotonic()
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-test", timeout=600.0) as client:
        await asyncio.gather(
            *[_user(client, engine, number, began, answers, retries=retries) for number in range(at_once)]
        )
    return answers


def _lone_s(url: str, engine: str) -> float:
    """Return how long an embedding takes that has the engine to itself."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="sk-test", timeout=600.0) as client:
        client.embeddings.create(model=engine, input=_text(-1), encoding_format="float")
        began = time.monotonic()
        client.embeddings.create(model=engine, input=_text(-2), encoding_format="float")
        return time.monotonic() - began


def test_embeddings_at_eight_times_the_cap_are_never_begun_too_late_and_lose_nothing(
    pooling_bench: Bench,
) -> None:
    engine: Engine = pooling_bench.engine
    cap = engine.kind.streams
    model = engine.model
    patience_s = max(LEAST_PATIENCE_S, PATIENCE_LONE * _lone_s(engine.url, model))
    gate = pooling_bench.gate(cap=cap, **{"lanes__*__ttft_slo": f"{patience_s:.1f}s"})
    alone = asyncio.run(_users(engine.url, model, cap, patience_s, retries=0))
    with Watch(engine) as watch:
        through = asyncio.run(
            _users(f"http://127.0.0.1:{gate.port}", model, AT_ONCE * cap, patience_s, retries=2)
        )
    outcomes = gate.ended()
    lanes = gate.state()["lanes"]
    (told,) = gate.state()["engines"]
    note(
        engine.kind.name,
        f"{AT_ONCE * cap} users of embeddings at a cap of {cap}",
        throughput_share=round(through.per_s() / alone.per_s(), 3),
        alone_per_s=round(alone.per_s(), 2),
        patience_s=round(patience_s, 1),
        users=dict(through.told),
        attempts=outcomes,
        expected_service_s=round(told["expected_service_s"], 2),
        peak=watch.peak,
    )

    assert set(through.told) <= {"good", *(f"refused {reason}" for reason in Reason)}, "no 504 among them"
    assert through.per_s() >= 0.9 * alone.per_s()
    late = max(0, outcomes.get("late", 0) - cap)
    assert late <= 0.1 * outcomes["good"], (
        "beside those that went before any time was known, one cap full of them"
    )
    assert watch.peak <= cap
    assert [lane["outcomes"].get("timeout", 0) for lane in lanes] == [0] * len(lanes)

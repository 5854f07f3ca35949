"""One engine reads ten times as fast as the other: what is too long for the slow one waits for the fast one, and holds up no other."""

from dataclasses import replace
from typing import Any

from core.governor.asking import ask
from core.world import governor
from millgate.core.decisions import Admit, Queue, Yield
from millgate.core.events import Finished, FirstToken, Released, Tick
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior
from millgate.core.words import DeadlineFrom, Reason

# A token of a prompt takes 0.1 ms on the one and 1 ms on the other; one of an answer takes 50 ms.
FAST, SLOW = (ServicePrior(0.01, per_token_s, 0.05, 0.0) for per_token_s in (0.0001, 0.001))
SHORT: dict[str, Any] = {"prompt_bytes": 400, "max_tokens": 10}
# 10,000 tokens: 1 s on the fast one, 10 s on the slow one.
LONG: dict[str, Any] = {"prompt_bytes": 40_000, "max_tokens": 10}


def _gate(busy_tokens: int, **lane: Any) -> Governor:
    """Return a gate of both, both at work, whose deadline is 5 s; the one stream of the fast one is busy for some 50 ms a token."""
    engines = tuple(
        EngineSettings(name, streams, prior=prior, prefill_tokens=16_384)
        for name, streams, prior in (("fast", 1, FAST), ("slow", 4, SLOW))
    )
    gate = governor(LaneSettings("lane", deadline_s=5.0, **lane), engines=engines)
    admitted = ask(gate, 1, prompt_bytes=400, max_tokens=busy_tokens)
    assert _engine(admitted) == "fast"
    gate.handle(FirstToken(1), 0.02)
    assert _engine(ask(gate, 9, 0.03, prompt_bytes=400, max_tokens=10_000)) == "slow", "an idle one is tried"
    gate.handle(FirstToken(9), 0.09)
    return gate


def _engine(decision: Any) -> str:
    assert isinstance(decision, Admit)
    name: str = decision.legs[0].engine
    return name


def _end(gate: Governor, attempt: int, now: float) -> list[Any]:
    return [*gate.handle(Finished(attempt, None, 10), now), *gate.handle(Released(attempt), now)]


def test_a_long_prompt_waits_for_the_fast_engine_that_is_full() -> None:
    gate = _gate(20)
    queued = ask(gate, 2, 0.1, **LONG)
    assert isinstance(queued, Queue), "on the slow one, which has room, its first token comes after 10 s"
    assert 3.9 < queued.better_until < 4.2, "5 s from its arrival, less the second that it takes to be read"

    assert _engine(_end(gate, 1, 1.0)[-1]) == "fast"


def test_shorter_ones_have_the_slow_engine_meanwhile() -> None:
    gate = _gate(20)
    assert isinstance(ask(gate, 2, 0.1, **LONG), Queue)

    assert _engine(ask(gate, 3, 0.2, **SHORT)) == "slow"
    assert _engine(_end(gate, 1, 1.0)[-1]) == "fast"


def test_one_that_no_engine_reads_in_time_is_refused_at_once() -> None:
    refused = ask(_gate(20), 2, 0.1, prompt_bytes=400_000, max_tokens=10)
    assert isinstance(refused, Yield)
    assert (refused.reason, refused.retry) == (Reason.TOO_LATE, False)


def test_one_that_the_fast_engine_can_never_hold_is_not_told_to_come_back() -> None:
    """It was told to come back in 0.1 s, as often as it came: the fast engine reads it in time, and has no memory for it."""
    fast = EngineSettings("fast", 4, 8_000, prior=replace(FAST, certain=True))
    slow = EngineSettings("slow", 4, 100_000, prior=replace(SLOW, certain=True))
    gate = governor(
        LaneSettings("lane", deadline_s=5.0, deadline_from=DeadlineFrom.ATTEMPT), engines=(fast, slow)
    )
    refused = ask(gate, 1, **LONG)

    assert isinstance(refused, Yield)
    assert (refused.reason, refused.retry) == (Reason.TOO_LATE, False)


def test_it_is_refused_at_once_where_the_fast_engine_is_full_for_longer_than_it_may_wait() -> None:
    refused = ask(_gate(100), 2, 0.1, **LONG)
    assert isinstance(refused, Yield), "the four free streams of the slow one are of no use to it"
    assert refused.reason is Reason.TOO_LATE


def test_where_it_may_not_wait_its_hint_says_when_the_fast_engine_is_free() -> None:
    gate = _gate(40, max_queue=0)
    refused = ask(gate, 2, 0.1, **LONG)
    assert isinstance(refused, Yield)
    assert refused.retry
    assert 1.5 < refused.retry_after_s < 2.2, "not at once, as for the free streams of the slow one"

    _end(gate, 1, 2.0)
    assert _engine(ask(gate, 3, 0.1 + refused.retry_after_s, **LONG, fingerprint=lambda: 2)) == "fast"


def test_it_is_refused_when_the_fast_engine_is_not_free_in_time_after_all() -> None:
    gate = _gate(20)
    assert isinstance(ask(gate, 2, 0.1, **LONG), Queue)
    decisions: list[Any] = []
    while not decisions and (wakes_at := gate.next_wake()) is not None and wakes_at < 60.0:
        decisions += gate.handle(Tick(), wakes_at)
    assert isinstance(decisions[0], Yield)
    assert wakes_at is not None
    assert wakes_at < 5.2, "no engine has had any of it"
    assert decisions[0].reason in {Reason.TOO_LATE, Reason.EXPIRED}

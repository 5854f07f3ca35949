"""More adapters than slots: the gate holds what has none, nothing else waits for it, and each has its turn."""

from dataclasses import replace

import pytest

from core.world import governor
from millgate.core.decisions import Admit, Decision, Queue, Yield
from millgate.core.events import (
    AdaptersSeen,
    Arrived,
    EngineDown,
    EngineSeen,
    Finished,
    FirstToken,
    Released,
    Tick,
)
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior, Settings
from millgate.core.words import Counted

PRIOR = ServicePrior(0.01, 0.0001, 0.01, 0.0)
NAMES = ("law", "tax", "tea")
ENGINE = EngineSettings("", 8, prior=PRIOR, adapters=NAMES, adapter_slots=1)
SERVICE_S = 1.0


def _gate(*engines: str, deadline_s: float = 60.0, slots: int | None = 1) -> Governor:
    lane = LaneSettings("lane", ttft_slo_s=deadline_s, deadline_s=deadline_s)
    return governor(lane, engines=tuple(replace(ENGINE, name=name, adapter_slots=slots) for name in engines))


def _asks(gate: Governor, attempt: int, model: str, now: float, tenant: str = "t") -> tuple[Decision, ...]:
    return gate.handle(Arrived(attempt, tenant, model=model, prompt_bytes=400, max_tokens=100), now)


def _ends(gate: Governor, attempt: int, now: float) -> tuple[Decision, ...]:
    gate.handle(FirstToken(attempt), now)
    gate.handle(Finished(attempt, 100, 100), now)
    return gate.handle(Released(attempt), now)


def _started(decisions: tuple[Decision, ...]) -> list[int]:
    return [each.attempt for each in decisions if isinstance(each, Admit)]


def test_a_request_whose_adapter_has_no_slot_waits_until_one_is_free() -> None:
    gate = _gate("a")
    assert _started(_asks(gate, 1, "law", 0.0)) == [1]

    waits = _asks(gate, 2, "tax", 0.1)

    assert isinstance(waits[0], Queue)
    # Its turn, which is as long as an answer and a load, and then the last answer.
    assert waits[0].expected_wait_s == pytest.approx(2.0 * SERVICE_S + ENGINE.adapter_load_s, abs=0.1)
    assert _started(waits) == []
    assert _started(_ends(gate, 1, 1.0)) == [2]


def test_a_request_that_needs_no_adapter_goes_before_one_that_waits_for_a_slot() -> None:
    gate = _gate("a")
    _asks(gate, 1, "law", 0.0)
    _asks(gate, 2, "tax", 0.1)

    assert _started(_asks(gate, 3, "base", 0.2)) == [3]
    assert _started(_asks(gate, 4, "law", 0.3)) == [4], "its turn is not over"


def test_an_adapter_that_waits_has_its_turn_however_many_come_for_the_other() -> None:
    gate = _gate("a")
    _asks(gate, 1, "law", 0.0)
    _asks(gate, 2, "tax", 0.1)
    running, attempt, now = {1: SERVICE_S}, 2, 0.1
    while 2 not in running and now < 10.0:
        now += 0.25
        decisions = gate.handle(Tick(), now)
        for number in [each for each, end in running.items() if end <= now]:
            decisions += _ends(gate, number, now)
            del running[number]
        attempt += 1
        decisions += _asks(gate, attempt, "law", now)
        running |= dict.fromkeys(_started(decisions), now + SERVICE_S)

    assert now <= 2.0 * (SERVICE_S + ENGINE.adapter_load_s) + SERVICE_S


def test_no_engine_is_asked_for_more_adapters_at_once_than_it_has_slots() -> None:
    names = tuple(f"adapter-{number}" for number in range(7))
    lane = LaneSettings("lane", ttft_slo_s=4.0, deadline_s=4.0)
    engines = tuple(replace(ENGINE, name=name, adapters=names, adapter_slots=2) for name in "ab")
    gate = governor(lane, engines=engines)
    running: dict[int, tuple[str, str, float]] = {}
    most, models = 0, {}
    for number in range(400):
        now = 0.05 * number
        decisions = gate.handle(Tick(), now)
        for attempt in [each for each, (_, _, end) in running.items() if end <= now]:
            del running[attempt]
            decisions += _ends(gate, attempt, now)
        models[number] = names[number * number % 7]
        decisions += _asks(gate, number, models[number], now)
        for each in decisions:
            if isinstance(each, Admit):
                running[each.attempt] = each.legs[0].engine, models[each.attempt], now + SERVICE_S
        for engine in "ab":
            most = max(most, len({model for at, model, _ in running.values() if at == engine}))
    assert most == 2


@pytest.mark.parametrize("is_removed", [False, True])
def test_an_adapter_whose_slot_was_kept_on_an_engine_that_is_gone_has_its_turn_on_another(
    is_removed: bool,
) -> None:
    """It was refused for as long as its requests went on coming."""
    gate = _gate("a", "b")
    first = _asks(gate, 1, "law", 0.0)[0]
    assert isinstance(first, Admit)
    gone, other = ("a", "b") if first.legs[0].engine == "a" else ("b", "a")
    assert _started(_asks(gate, 2, "tea", 0.1)) == [2]
    assert _started(_asks(gate, 3, "tax", 5.0)) == []
    assert gate._knowledge.engines.placement.adapter_turns._claims["tax"].slots is not None, (
        "of the older turn"
    )
    lane = LaneSettings("lane", ttft_slo_s=60.0, deadline_s=60.0)
    if is_removed:
        gate.reconfigure(Settings((lane,), (replace(ENGINE, name=other),)), 5.1)
    else:
        gate.handle(EngineDown(gone), 5.1)

    _asks(gate, 4, "tax", 6.5)
    assert _started(_asks(gate, 5, "tea", 6.6)) == [], "its turn is over"
    assert _started(_ends(gate, 2, 7.0)) == [3, 4]


def test_a_request_that_cannot_have_a_slot_in_time_is_told_when_there_is_one() -> None:
    gate = _gate("a", deadline_s=0.5)
    _asks(gate, 1, "law", 0.0)

    refused = _asks(gate, 2, "tax", 0.0)[0]

    assert isinstance(refused, Yield)
    assert refused.counted is Counted.ADAPTERS
    assert refused.retry_after_s >= SERVICE_S


def test_where_nothing_may_wait_it_is_told_when_there_is_a_slot_too() -> None:
    lane = LaneSettings("lane", ttft_slo_s=60.0, deadline_s=60.0, max_queue=0)
    gate = governor(lane, engines=(replace(ENGINE, name="a"),))
    _asks(gate, 1, "law", 0.0)

    refused = _asks(gate, 2, "tax", 0.0)[0]

    assert isinstance(refused, Yield)
    assert refused.counted is Counted.ADAPTERS
    assert refused.value == pytest.approx(refused.retry_after_s)


def test_tenants_whose_adapters_hold_no_slot_go_before_those_who_hold_one() -> None:
    gate = _gate("a")
    _asks(gate, 1, "law", 0.0, tenant="large")
    _asks(gate, 2, "tax", 0.1, tenant="large")
    _asks(gate, 3, "tea", 0.2, tenant="small")
    assert _started(gate.handle(Tick(), 6.0)) == []

    assert _started(_ends(gate, 1, 6.1)) == [3]


def test_an_engine_says_itself_how_many_slots_it_has() -> None:
    gate = _gate("a", slots=None)
    _asks(gate, 1, "law", 0.0)
    assert _started(_asks(gate, 2, "tax", 0.1)) == [2], "nothing is known of its slots"

    gate.handle(EngineSeen("a", 0.5, 2, 0, adapters=AdaptersSeen(2, ("law", "tax"))), 0.5)

    assert _started(_asks(gate, 3, "tea", 0.6)) == []


def test_the_setting_goes_before_what_the_engine_says() -> None:
    gate = _gate("a", slots=1)
    gate.handle(EngineSeen("a", 0.5, 0, 0, adapters=AdaptersSeen(3)), 0.5)
    _asks(gate, 1, "law", 1.0)

    assert _started(_asks(gate, 2, "tax", 1.1)) == []


def test_adapters_that_run_there_for_others_hold_slots_while_the_engine_says_so() -> None:
    gate = _gate("a", slots=None)
    gate.handle(EngineSeen("a", 0.5, 1, 0, adapters=AdaptersSeen(1, ("tea",))), 0.5)
    assert _started(_asks(gate, 1, "law", 0.6)) == []

    assert _started(gate.handle(Tick(), 1.7)) == []
    assert _started(gate.handle(Tick(), 6.7)) == [1], "it has said nothing since"


def test_a_head_that_only_one_engine_can_run_does_not_hold_what_another_one_can() -> None:
    wide = EngineSettings("wide", 1, prior=PRIOR, models=("law", "base"))
    gate = governor(
        LaneSettings("lane", deadline_s=60.0), engines=(wide, replace(wide, name="plain", models=("base",)))
    )
    assert _started(_asks(gate, 1, "law", 0.0)) == [1]
    assert _started(_asks(gate, 2, "law", 0.1)) == []

    assert _started(_asks(gate, 3, "base", 0.2)) == [3]


def test_a_prompt_that_only_the_large_engine_holds_does_not_hold_short_ones() -> None:
    small = EngineSettings("small", 4, 1_000, prior=PRIOR)
    gate = governor(
        LaneSettings("lane", deadline_s=60.0), engines=(small, replace(small, name="large", kv_tokens=10_000))
    )
    long = 8_000 * 4
    assert _started(gate.handle(Arrived(1, prompt_bytes=long, max_tokens=10), 0.0)) == [1]
    assert _started(gate.handle(Arrived(2, prompt_bytes=long, max_tokens=10), 0.1)) == []

    assert _started(gate.handle(Arrived(3, prompt_bytes=400, max_tokens=10), 0.2)) == [3]

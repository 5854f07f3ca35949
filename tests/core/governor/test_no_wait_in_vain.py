"""What could start does not wait until its time is over: whatever opens its way is looked at when it does."""

from collections.abc import Iterator
from typing import Any

import pytest
from lab.interpreted import is_compiled

from core.governor.asking import ask, gate_of
from millgate.core.decisions import Admit, Decision, Queue
from millgate.core.events import EngineUp, Failed, Finished, FirstToken, Tick
from millgate.core.governor import Governor
from millgate.core.queues.base import Queued
from millgate.core.queues.ranked import ArrivalOrder
from millgate.core.settings import (
    AccountSettings,
    EngineSettings,
    LaneSettings,
    QuotaLimit,
    ServicePrior,
    Settings,
)
from millgate.core.words import FailureKind, QuotaKind, Sent
from millgate.wiring.governor import INSTRUMENTS, build_governor

SLOW_TO_READ = ServicePrior(0.05, 0.001, 0.01, 0.0)


def _admitted(decisions: tuple[Decision, ...]) -> list[int]:
    return [each.attempt for each in decisions if isinstance(each, Admit)]


def _started(gate: Governor, until: float) -> dict[int, float]:
    """Let time pass; return when each attempt has started that waited."""
    started: dict[int, float] = {}
    while (wake := gate.next_wake()) is not None and wake <= until:
        started |= dict.fromkeys(_admitted(gate.handle(Tick(), wake)), wake)
    return started


def test_a_batch_that_began_to_form_on_a_full_engine_goes_when_its_window_ends_on_another() -> None:
    lane = LaneSettings("lane", window_s=0.3)
    engines = (EngineSettings("busy", 1), EngineSettings("back", 8, is_up=False))
    gate = build_governor(Settings((lane,), engines), 0.0)
    assert isinstance(ask(gate, 1), Admit)
    assert isinstance(ask(gate, 2, 2.0), Queue)
    assert _started(gate, 2.0) == {}

    assert gate.handle(EngineUp("back"), 2.1) == (), "more could come: it has eight streams"
    assert _started(gate, 60.0) == {2: 2.3}


def test_a_paced_prompt_goes_when_the_pace_lets_it_that_a_prompt_for_another_model_has_moved() -> None:
    lane = LaneSettings("lane", deadline_s=60.0, prefill_per_s=2_000.0)
    engines = (EngineSettings("both", 1, models=("m", "n")), EngineSettings("one", 1, models=("m",)))
    gate = build_governor(Settings((lane,), engines), 0.0)
    assert ask(gate, 1, model="n").legs[0].engine == "both"
    assert ask(gate, 2, model="m").legs[0].engine == "one"
    assert isinstance(ask(gate, 3, 1.0, model="m", prompt_bytes=4_000), Queue)
    assert isinstance(ask(gate, 4, 1.1, model="n"), Queue)
    assert _started(gate, 1.9) == {}

    assert _admitted(gate.handle(Finished(1, 100, 10, released=True), 2.0)) == [3]
    assert _admitted(gate.handle(Finished(3, 1_000, 10, released=True), 2.2)) == []
    assert _started(gate, 60.0) == {4: 2.5}, "half a second after the 1,000 tokens of the third"


def test_who_waits_for_a_full_engine_as_the_free_one_reads_too_long_goes_when_that_has_read() -> None:
    lanes = (LaneSettings("short", deadline_s=5.0), LaneSettings("long", deadline_s=60.0))
    engines = (EngineSettings("full", 1, prior=SLOW_TO_READ), EngineSettings("free", 4, prior=SLOW_TO_READ))
    gate = build_governor(Settings(lanes, engines), 0.0)
    assert ask(gate, 1).legs[0].engine == "full"
    assert ask(gate, 2, lane="long", prompt_bytes=32_000).legs[0].engine == "free"
    waits = ask(gate, 3, 0.1)
    assert isinstance(waits, Queue)
    assert waits.better_until > 4.0

    assert _admitted(gate.handle(FirstToken(2), 0.5)) == [3]


def test_small_requests_start_when_one_of_their_own_tenant_goes_before_the_large_one_that_held_them() -> None:
    lane = LaneSettings("lane", deadline_s=60.0, order="short_first", fair=True)
    gate = gate_of(lane, engine=EngineSettings("engine", 8, kv_tokens=20_000))
    assert isinstance(ask(gate, 1, tenant="z", prompt_bytes=48_000), Admit)
    assert isinstance(ask(gate, 2, 1.0, tenant="x", prompt_bytes=48_000), Queue)
    assert isinstance(ask(gate, 3, 1.1, tenant="y"), Queue), "the large one is next"

    ask(gate, 4, 1.2, tenant="x")
    assert gate.snapshot(1.2).lanes[0].queued == 1, "the large one alone waits for memory"


def test_one_of_many_streams_that_waits_holds_no_one_that_an_engine_too_small_for_it_can_take() -> None:
    engines = (EngineSettings("small", 2), EngineSettings("large", 4))
    gate = build_governor(Settings((LaneSettings("lane", deadline_s=60.0),), engines), 0.0)
    assert ask(gate, 1, answers=3).legs[0].engine == "large"
    assert ask(gate, 2).legs[0].engine == "small"
    assert isinstance(ask(gate, 3, 1.0, answers=4), Queue)

    assert ask(gate, 4, 1.1).legs[0].engine == "small"


def test_who_may_overflow_waits_for_own_engines_first_whatever_else_waits_before_it() -> None:
    lane = LaneSettings("lane", deadline_s=600.0, overflow_after_s=2.0)
    engines = (
        EngineSettings("large", 1, kv_tokens=100_000),
        EngineSettings("small", 1, kv_tokens=1_000),
        EngineSettings("bought", 8, kv_tokens=1_000, overflow=True),
    )
    gate = build_governor(Settings((lane,), engines), 0.0)
    assert {ask(gate, attempt).legs[0].engine for attempt in (1, 2)} == {"large", "small"}
    for attempt in range(3, 33):
        assert isinstance(ask(gate, attempt, 1.0, prompt_bytes=40_000), Queue)

    assert isinstance(ask(gate, 33, 1.0), Queue)
    assert _started(gate, 60.0) == {33: 3.0}


def test_who_waits_for_own_engines_once_more_as_one_has_failed_it_is_looked_at_when_that_is_over() -> None:
    lane = LaneSettings("lane", deadline_s=60.0, overflow_after_s=2.0)
    engines = (EngineSettings("one", 1), EngineSettings("two", 1), EngineSettings("bought", 8, overflow=True))
    gate = build_governor(Settings((lane,), engines), 0.0)
    assert {ask(gate, attempt).legs[0].engine for attempt in (1, 2)} == {"one", "two"}
    assert ask(gate, 3).better_until == 2.0
    assert _admitted(gate.handle(Finished(1, 100, 10, released=True), 0.5)) == [3]

    assert isinstance(gate.handle(Failed(3, FailureKind.CONNECT, Sent.NONE), 0.6)[-1], Queue)
    assert _started(gate, 60.0) == {3: 2.0}


def test_what_waits_for_an_account_is_noted_once_however_much_other_engines_answer_meanwhile() -> None:
    """Each answer left a note behind: with a thousand a second, a minute of them cost 3 ms a request."""
    account = AccountSettings((QuotaLimit(QuotaKind.RPM, 1.0),))
    engines = (
        EngineSettings("bought", 8, models=("m",), account=account),
        EngineSettings("own", 8, models=("n",)),
    )
    gate = build_governor(Settings((LaneSettings("lane", deadline_s=600.0),), engines), 0.0)
    assert isinstance(ask(gate, 1, model="m"), Admit)
    assert isinstance(ask(gate, 2, model="m"), Queue)

    for attempt in range(3, MANY):
        now = 0.01 * attempt
        assert isinstance(ask(gate, attempt, now, model="n"), Admit)
        gate.handle(Finished(attempt, 100, 10, released=True), now + 0.005)
    assert len(gate._knowledge.attempts.wakes) < 10


MANY = 300
INTERPRETED = pytest.mark.skipif(is_compiled(), reason="a compiled class has no interpreted ones below it")


class _Counting(ArrivalOrder):
    """Counts how often one of those that wait is looked at."""

    looks = 0

    def __iter__(self) -> Iterator[Queued]:
        for each in super().__iter__():
            _Counting.looks += 1
            yield each


def _looks(gate: Governor, event: Any, now: float) -> int:
    _Counting.looks = 0
    gate.handle(event, now)
    return _Counting.looks


@INTERPRETED
def test_what_one_event_costs_does_not_grow_with_the_square_of_those_that_wait_for_one_engine() -> None:
    """Long prompts that only one of two engines can hold: 400 ms an event with 2,000 of them, while its engine was full."""
    lane = LaneSettings("lane", deadline_s=600.0)
    engines = (EngineSettings("large", 1, kv_tokens=100_000), EngineSettings("small", 1, kv_tokens=1_000))
    gate = Governor(Settings((lane,), engines), lambda _lane: _Counting(), INSTRUMENTS, 0.0)
    for attempt in (1, 2):
        assert isinstance(ask(gate, attempt), Admit)
    for attempt in range(3, MANY):
        assert isinstance(ask(gate, attempt, 1.0, prompt_bytes=40_000), Queue)

    assert _looks(gate, Finished(2, 100, 10, released=True), 2.0) < 6 * MANY
    assert isinstance(ask(gate, MANY, 2.0), Admit), "the small engine is free for a small one"


def _turn(gate: Governor, attempt: int, session: int, now: float, turn: int = 1) -> Any:
    marks = tuple((100 * session + each, 20_000 * (each + 1)) for each in range(turn))
    return ask(gate, attempt, now, prompt_bytes=20_000 * turn, session=session, marks=lambda: marks)


@INTERPRETED
def test_what_one_event_costs_does_not_grow_with_the_square_of_the_sessions_that_wait_to_be_opened() -> None:
    """Four sessions fill the memory, and come back at once after each answer."""
    lane = LaneSettings("lane", deadline_s=600.0)
    engine = EngineSettings("engine", 4, kv_tokens=30_000)
    gate = Governor(Settings((lane,), (engine,)), lambda _lane: _Counting(), INSTRUMENTS, 0.0)
    for attempt in range(4):
        assert isinstance(_turn(gate, attempt, attempt, 0.0), Admit)
    for attempt in range(4, MANY):
        assert isinstance(_turn(gate, attempt, attempt, 0.0), Queue)

    for attempt in range(4):
        now = 1.0 + attempt
        looks = _looks(gate, Finished(attempt, 5_000, 50, released=True), now)
        _turn(gate, MANY + attempt, attempt, now + 0.01, turn=2)
    assert looks < 10 * MANY

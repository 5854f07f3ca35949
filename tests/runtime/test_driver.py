"""The driver: one writer, no re-entry, one timer, and listeners that cannot break it.

The core here is a script, because what is tested is the order in which it is called.
"""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any

import pytest

from millgate.core.decisions import Admit, Cancel, Decision, Ended, Explanation, Queue, Yield
from millgate.core.events import (
    Arrived,
    ClientGone,
    Event,
    FirstToken,
    QuotaUse,
    Released,
    StoodStill,
    Tick,
)
from millgate.core.settings import Settings
from millgate.core.snapshot import Capacity, SharedUse, Snapshot
from millgate.core.words import Outcome, Reason
from millgate.runtime.clock import MonotonicClock
from millgate.runtime.driver import Driver
from millgate.runtime.lag import LoopLag


class ScriptedCore:
    """Answers each event with what the script says, and notes the calls."""

    def __init__(self) -> None:
        self.script: dict[type, Callable[[Any], tuple[Decision, ...]]] = {}
        self.handled: list[Event] = []
        self.times: list[float] = []
        self.depth = 0
        self.wake: float | None = None
        self.awaited = True

    def handle(self, event: Event, now: float) -> tuple[Decision, ...]:
        assert self.depth == 0, "the core was re-entered"
        self.depth += 1
        self.handled.append(event)
        self.times.append(now)
        if isinstance(event, Tick):
            self.wake = None
        answer = self.script.get(type(event), lambda _: ())(event)
        self.depth -= 1
        return answer

    def next_wake(self) -> float | None:
        return self.wake

    def is_awaited(self) -> bool:
        return self.awaited

    def snapshot(self, now: float) -> Snapshot:
        raise NotImplementedError

    def capacity(self) -> Capacity:
        return Capacity(0, 1)

    def explain(self, arrival: Arrived, now: float) -> Explanation:
        raise NotImplementedError

    def shared_use(self, now: float) -> SharedUse:
        raise NotImplementedError

    def quota_uses(self, now: float) -> tuple[QuotaUse, ...]:
        raise NotImplementedError

    def reconfigure(self, settings: Settings, now: float) -> tuple[Decision, ...]:
        return (_yield(1),)


class Noted:
    """A listener that writes down what it is told, and does what the test wants at each word."""

    def __init__(self, act: Callable[[str], None] = lambda _: None) -> None:
        self.heard: list[str] = []
        self._act = act

    def _hear(self, word: str) -> None:
        self.heard.append(word)
        self._act(word)

    def on_admit(self, decision: Admit) -> None:
        self._hear("admit")

    def on_queue(self, decision: Queue) -> None:
        self._hear("queue")

    def on_yield(self, decision: Yield) -> None:
        self._hear("yield")

    def on_cancel(self, decision: Cancel) -> None:
        self._hear("cancel")

    def on_ended(self, decision: Ended) -> None:
        self._hear("ended")


def _admit(attempt: int) -> Admit:
    return Admit(attempt, (), 0.0, 0.0, 1.0)


def _yield(attempt: int) -> Yield:
    return Yield(attempt, Reason.SATURATED, 1.0, retry=True)


def _ended(attempt: int) -> Ended:
    return Ended(attempt, Outcome.GOOD, "lane", "engine", 0.0, 0.0, None, 0, 0, None)


def drive(test: Callable[[ScriptedCore, Driver], None]) -> None:
    async def body() -> None:
        core = ScriptedCore()
        test(core, Driver(core, MonotonicClock(), asyncio.get_running_loop()))

    asyncio.run(body())


def test_attempts_are_numbered_once() -> None:
    drive(lambda _, driver: _check(len({driver.next_attempt() for _ in range(100)}) == 100))


def _check(truth: bool) -> None:
    assert truth


def test_a_loop_that_stood_still_is_told_once_before_what_was_to_be_read_meanwhile() -> None:
    def test(core: ScriptedCore, driver: Driver) -> None:
        now = MonotonicClock.now()
        driver.lag = LoopLag(asyncio.get_running_loop())
        driver.post(FirstToken(1))
        driver.lag.due = now - 40.0
        driver.post(FirstToken(2))
        driver.post(Released(1))
        driver.lag.due = now + 0.1
        driver.post(Released(2))
        assert core.handled == [FirstToken(1), StoodStill(), FirstToken(2), Released(1), Released(2)]

    drive(test)


@pytest.mark.parametrize("awaited", [True, False])
def test_the_core_hears_of_a_standstill_at_its_end_and_of_nothing_before_that_afterwards(
    *, awaited: bool
) -> None:
    """At its begin a full gate counted the whole standstill as time in which its engine gave nothing back."""

    def test(core: ScriptedCore, driver: Driver) -> None:
        now = MonotonicClock.now()
        driver.lag = LoopLag(asyncio.get_running_loop())
        core.wake, core.awaited = now - 39.9, awaited
        driver.lag.due = inf
        driver.post(FirstToken(1))
        driver.lag.due = now - 40.0
        driver.post(Released(1))
        assert [type(event) for event in core.handled[-3:]] == [StoodStill, Tick, Released]
        assert now <= core.times[-3] <= core.times[-2] <= core.times[-1]

    drive(test)


def test_each_decision_goes_to_the_listener_of_its_attempt() -> None:
    def test(core: ScriptedCore, driver: Driver) -> None:
        first, second = Noted(), Noted()
        driver.attach(1, first)
        driver.attach(2, second)
        core.script[Released] = lambda _: (_admit(1), Queue(2, 1, 0.5), _admit(2), _ended(2))
        driver.post(Released(7))
        assert first.heard == ["admit"]
        assert second.heard == ["queue", "admit", "ended"]

    drive(test)


def test_nothing_is_told_after_a_yield_or_an_end() -> None:
    def test(core: ScriptedCore, driver: Driver) -> None:
        refused, ended = Noted(), Noted()
        driver.attach(1, refused)
        driver.attach(2, ended)
        core.script[Released] = lambda _: (_yield(1), _ended(1), _ended(2))
        driver.post(Released(7))
        driver.post(Released(7))
        assert refused.heard == ["yield"]
        assert ended.heard == ["ended"]

    drive(test)


def test_an_event_posted_by_a_listener_is_handled_after_the_step() -> None:
    def test(core: ScriptedCore, driver: Driver) -> None:
        listener = Noted(lambda word: driver.post(ClientGone(1)) if word == "admit" else None)
        driver.attach(1, listener)
        driver.attach(2, Noted())
        core.script[Arrived] = lambda _: (_admit(1), _admit(2))
        driver.post(Arrived(1))
        assert [type(event) for event in core.handled] == [Arrived, ClientGone]

    drive(test)


def test_a_listener_that_fails_is_reported_and_stops_nobody() -> None:
    def test(core: ScriptedCore, driver: Driver) -> None:
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

        def fail(word: str) -> None:
            raise ValueError(word)

        other = Noted()
        driver.attach(1, Noted(fail))
        driver.attach(2, other)
        core.script[Arrived] = lambda _: (_admit(1), _admit(2))
        driver.post(Arrived(1))
        driver.post(FirstToken(2))
        assert other.heard == ["admit"]
        assert isinstance(reported[0]["exception"], ValueError)
        assert len(core.handled) == 2

    drive(test)


def test_a_core_that_fails_leaves_the_driver_usable() -> None:
    def test(core: ScriptedCore, driver: Driver) -> None:
        def fail(_: Any) -> tuple[Decision, ...]:
            core.depth = 0
            raise ZeroDivisionError

        core.script[Arrived] = fail
        with pytest.raises(ZeroDivisionError):
            driver.post(Arrived(1))
        driver.post(FirstToken(1))
        assert isinstance(core.handled[-1], FirstToken)

    drive(test)


def test_observers_see_every_step_with_its_decisions() -> None:
    def test(core: ScriptedCore, driver: Driver) -> None:
        seen: list[tuple[Event, tuple[Decision, ...]]] = []

        class Watching:
            def on_step(self, event: Event, decisions: tuple[Decision, ...], now: float) -> None:
                seen.append((event, decisions))

        driver.observers.append(Watching())
        core.script[Arrived] = lambda _: (_admit(1),)
        driver.post(Arrived(1))
        driver.post(Released(1))
        assert seen == [(Arrived(1), (_admit(1),)), (Released(1), ())]

    drive(test)


def test_new_settings_are_carried_out() -> None:
    def test(core: ScriptedCore, driver: Driver) -> None:
        listener = Noted()
        driver.attach(1, listener)
        driver.reconfigure(Settings((), ()))
        assert listener.heard == ["yield"]

    drive(test)


def test_the_core_is_woken_when_it_said_and_not_before() -> None:
    async def body() -> None:
        core, loop = ScriptedCore(), asyncio.get_running_loop()
        driver = Driver(core, MonotonicClock(), loop)
        woken = asyncio.Event()

        def wake(_: Any) -> tuple[Decision, ...]:
            woken.set()
            return ()

        core.script[Tick] = wake
        begun = MonotonicClock.now()
        core.wake = begun + 0.05
        driver.post(Released(1))
        await asyncio.wait_for(woken.wait(), 5)
        assert MonotonicClock.now() >= begun + 0.05
        assert sum(isinstance(event, Tick) for event in core.handled) == 1

    asyncio.run(body())


def test_what_nothing_awaits_is_made_up_for_before_the_next_event_and_sets_no_timer() -> None:
    async def body() -> None:
        core, loop = ScriptedCore(), asyncio.get_running_loop()
        driver = Driver(core, MonotonicClock(), loop)
        core.awaited, core.wake = False, MonotonicClock.now() + 0.02
        due_at = core.wake
        driver.post(Released(1))
        await asyncio.sleep(0.05)
        assert [type(event) for event in core.handled] == [Released]
        driver.post(Released(2))
        assert [type(event) for event in core.handled] == [Released, Tick, Released]
        assert core.times[1] == due_at

    asyncio.run(body())


def test_an_event_outlasts_a_core_that_fails_on_what_was_due_before_it() -> None:
    async def body() -> None:
        core = ScriptedCore()
        driver = Driver(core, MonotonicClock(), asyncio.get_running_loop())

        def fail(_: Any) -> tuple[Decision, ...]:
            core.depth = 0
            raise ZeroDivisionError

        core.script[Tick], core.awaited, core.wake = fail, False, MonotonicClock.now()
        driver.post(Released(1))
        with pytest.raises(ZeroDivisionError):
            driver.post(Released(2))
        driver.post(Released(3))
        assert core.handled[-2:] == [Released(3), Released(2)]

    asyncio.run(body())


def test_what_nothing_awaits_is_made_up_for_before_a_question() -> None:
    def test(core: ScriptedCore, driver: Driver) -> None:
        core.awaited, core.wake = False, MonotonicClock.now()
        driver.post(Released(1))
        driver.capacity()
        driver.capacity()
        assert [type(event) for event in core.handled] == [Released, Tick]

    drive(test)


def test_what_is_made_up_for_happens_now_where_something_awaits_it() -> None:
    """A deadline may have passed since it was due."""

    def test(core: ScriptedCore, driver: Driver) -> None:
        core.wake = MonotonicClock.now() - 1.0
        driver.post(Released(1))
        driver.post(Released(2))
        assert [type(event) for event in core.handled] == [Released, Tick, Released]
        assert core.times[1] == core.times[2]

    drive(test)


def test_the_timer_is_set_again_only_when_the_wake_moves_earlier() -> None:
    class CountingLoop:
        def __init__(self) -> None:
            self.timers: list[float] = []

        def call_later(self, delay_s: float, _: Any) -> asyncio.TimerHandle:
            self.timers.append(delay_s)
            return asyncio.TimerHandle(0.0, lambda: None, (), asyncio.get_running_loop())

    async def body() -> None:
        core, loop = ScriptedCore(), CountingLoop()
        driver = Driver(core, MonotonicClock(), loop)  # type: ignore[arg-type]
        now = MonotonicClock.now()
        for wake in (now + 10, now + 20, now + 10, now + 5, None, now + 6):
            core.wake = wake
            driver.post(Released(1))
        assert [round(delay_s) for delay_s in loop.timers] == [10, 5]

    asyncio.run(body())

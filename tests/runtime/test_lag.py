"""The loop's own lateness."""

import asyncio
from collections.abc import Callable
from typing import Any

from millgate.runtime.lag import LATE_S, ON_TIME_SHARE, PERSISTENT_S, STALL_S, TICK_S, LoopLag


class ManualLoop:
    """A loop whose one timer fires when the test says, however late."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due = 0.0
        self._callback: Callable[[], None] = lambda: None

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Any:
        self._due, self._callback = when, callback

    def fire(self, late_s: float) -> None:
        self.now = self._due + late_s
        self._callback()


def a_lag() -> tuple[ManualLoop, LoopLag]:
    loop = ManualLoop()
    lag = LoopLag(loop)  # type: ignore[arg-type]
    lag.start()
    return loop, lag


def test_one_late_tick_is_a_hiccup() -> None:
    loop, lag = a_lag()
    loop.fire(0.5)
    assert lag.lag_s == 0.5
    assert not lag.overloaded
    loop.fire(0.0)
    loop.fire(0.5)
    assert not lag.overloaded


def test_a_burst_that_makes_two_turns_late_is_no_overload() -> None:
    loop, lag = a_lag()
    for _ in range(10):
        loop.fire(0.4)
        loop.fire(0.4)
        assert not lag.overloaded
        loop.fire(0.0)


def test_a_loop_that_stood_still_is_not_overloaded_by_that_alone() -> None:
    loop, lag = a_lag()
    loop.fire(12.0)
    assert not lag.overloaded


def test_late_ticks_for_a_second_are_overload_until_one_is_on_time() -> None:
    loop, lag = a_lag()
    loop.fire(0.2)
    first_late = loop.now
    while not lag.overloaded:
        assert loop.now - first_late < PERSISTENT_S, "late at every look, and for so long"
        loop.fire(0.2)
    assert loop.now - first_late >= PERSISTENT_S
    loop.fire(LATE_S * ON_TIME_SHARE + 0.01)
    assert lag.overloaded
    loop.fire(0.0)
    assert not lag.overloaded


def test_a_real_loop_on_time_is_not_overloaded() -> None:
    async def body() -> None:
        lag = LoopLag(asyncio.get_running_loop())
        lag.start()
        await asyncio.sleep(2.5 * TICK_S)
        assert not lag.overloaded
        lag.stop()

    asyncio.run(body())


def test_the_end_of_a_standstill_is_told_while_it_can_be_seen() -> None:
    loop, lag = a_lag()
    overdue: list[float] = []
    lag.on_late = lambda: overdue.append(loop.now - lag.due)
    loop.fire(STALL_S)
    loop.fire(40.0)
    assert overdue == [40.0]

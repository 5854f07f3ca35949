"""The loop's own lateness."""

import asyncio
from collections.abc import Callable
from typing import Any

from millgate.runtime.lag import LATE_S, ON_TIME_SHARE, TICK_S, LoopLag


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


def test_two_late_ticks_in_a_row_are_overload_until_one_is_on_time() -> None:
    loop, lag = a_lag()
    loop.fire(0.2)
    loop.fire(0.2)
    assert lag.overloaded
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

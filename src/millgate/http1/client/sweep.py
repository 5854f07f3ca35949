"""One timer for many deadlines: stamps are compared every 100 ms, and no connection or chunk owns a timer."""

import asyncio
from collections.abc import Callable
from typing import Final

SWEEP_S: Final = 0.1
"""How often deadlines are compared (design section 6): fine enough for seconds, nothing at ten times a second."""
_TURN_S: Final = 0.001
"""The shortest timer: it fires only after the loop has looked at its sockets once."""


def _unforgiving(_lost_s: float) -> None:
    """Let a standstill count like any time."""


class Sweep:
    """Calls `check(now)` every `SWEEP_S` seconds between `start` and `stop`; `now` is the loop's last stamp.

    The stamp is at most `SWEEP_S` old, so that the hot path reads an attribute and no clock.

    After the loop has stood still (a stopped process, a paused machine) `forgive` is told for how long, and the sockets
    are read once before anything is compared: what came meanwhile came in time. A peer is not late
    because this process was.
    """

    def __init__(
        self, check: Callable[[float], None], forgive: Callable[[float], None] = _unforgiving
    ) -> None:
        self._check = check
        self._forgive = forgive
        self._forgave = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.now = 0.0

    def start(self) -> None:
        """Begin sweeping on the running loop; again is harmless."""
        if self._timer is None:
            self._loop = asyncio.get_running_loop()
            self.now = self._loop.time()
            self._timer = self._loop.call_later(SWEEP_S, self._tick)

    def stop(self) -> None:
        """Stop sweeping; again is harmless."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def running(self) -> bool:
        """Whether a timer is armed."""
        return self._timer is not None

    def _tick(self) -> None:
        assert self._loop is not None
        before, self.now = self.now, self._loop.time()
        lost_s = self.now - before - SWEEP_S
        # Not twice in a row: a loop that is always late must still come to its deadlines.
        self._forgave = lost_s > SWEEP_S and not self._forgave
        if self._forgave:
            self._timer = self._loop.call_later(_TURN_S, self._tick)
            self._forgive(lost_s)
        else:
            self._timer = self._loop.call_later(SWEEP_S, self._tick)
            self._check(self.now)

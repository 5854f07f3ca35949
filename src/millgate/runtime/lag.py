"""Is this process itself the bottleneck? The lateness of a timer says how long a ready event waits for its turn."""

import asyncio
from collections.abc import Callable
from math import inf
from time import process_time

TICK_S = 0.1
LATE_S = 0.1
ON_TIME_SHARE = 0.5
"""Design section 6: refuse above 100 ms, take requests again below 50 ms."""
PERSISTENT_S = 1.0
"""Late at every look for so long. The work of one turn is over by then (32 clients that come at once, a long answer to
read, a neighbour that took the core). A process that has too much to do is late for good."""
STALL_S = 0.5
"""A loop that stood still so long has made every stream stutter: worth a report."""


class LoopLag:
    """Watches its loop's lateness; `overloaded` once every tick of PERSISTENT_S was late, until one is on time.

    A few late ticks are a burst, and over when it is served: to refuse what came in it would help no other request.
    `due` is the time of the next tick, `worst_s` the latest tick so far; `on_late` is called at one later than STALL_S
    while `due` is still its time, `on_stall` is told of each that is later than STALL_S, in `seconds`, and of the CPU
    time `cpu_s` that this process took meanwhile.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, late_s: float = LATE_S) -> None:
        self.late_s = late_s
        self._loop = loop
        self.due, self._cpu_s = inf, 0.0
        self._late_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.lag_s = 0.0
        self.worst_s = 0.0
        self.on_late: Callable[[], object] = lambda: None
        self.on_stall: Callable[..., object] | None = None
        self.overloaded = False

    def start(self) -> None:
        """Begin watching."""
        self.due, self._cpu_s = self._loop.time() + TICK_S, process_time()
        self._timer = self._loop.call_at(self.due, self._tick)

    def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self.lag_s = max(0.0, self._loop.time() - self.due)
        self.worst_s = max(self.worst_s, self.lag_s)
        self._judge(self._loop.time())
        cpu_s = process_time() - self._cpu_s
        if self.lag_s > STALL_S:
            self.on_late()
        self.start()
        if self.lag_s > STALL_S and self.on_stall is not None:
            self.on_stall(seconds=round(self.lag_s, 3), cpu_s=round(cpu_s, 3))

    def _judge(self, now: float) -> None:
        if self.lag_s <= self.late_s:
            self._late_since = None
            if self.lag_s < self.late_s * ON_TIME_SHARE:
                self.overloaded = False
        elif self._late_since is None:
            self._late_since = now
        elif now - self._late_since >= PERSISTENT_S:
            self.overloaded = True

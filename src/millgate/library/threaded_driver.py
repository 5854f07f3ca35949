"""The governor for threads and loops at once: one lock, no thread of its own, no timer.

`runtime.driver` belongs to one event loop. Inside a user's program there may be several loops and plain threads,
so here every caller takes the lock for the microseconds of one decision. No caller needs to be woken by a clock:
a waiting caller sleeps no longer than until the core's next wake and ticks then, which also decides about the others.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from weakref import WeakSet

from millgate.core.decisions import Admit, Decision, Yield
from millgate.core.events import Arrived, ClientGone, Event, Released, Tick
from millgate.core.settings import Settings
from millgate.core.snapshot import Snapshot
from millgate.wiring.governor import build_governor


class Waiter:
    """Remembers the answer and wakes the caller that waits for it."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self.decision: Admit | Yield | None = None
        self._wake = wake

    def decided(self, decision: Admit | Yield) -> bool:
        """Take note, then wake, from any thread while the lock is held; return False where the loop that waited is closed."""
        self.decision = decision
        try:
            self._wake()
        except RuntimeError:
            return False
        return True


class ThreadedDriver:
    """Feeds events to a governor of its own and hands each admission or refusal to its caller."""

    def __init__(self, settings: Settings, clock: Callable[[], float]) -> None:
        self._settings, self._clock = settings, clock
        self.next_attempt = count(1).__next__
        """Returns a number that no other attempt at this driver has."""
        self.begin()
        _drivers.add(self)

    def begin(self) -> None:
        """Know nothing of what has run; what then ends of it is unknown to the core, and changes nothing."""
        self._lock = threading.Lock()
        self._posted: deque[Event] = deque()
        self._governor = build_governor(self._settings, self._clock())
        self._waiters: dict[int, Waiter] = {}

    def ask(self, arrival: Arrived, waiter: Waiter) -> None:
        """Ask for a permit; the waiter is told, at once or later."""
        with self._held():
            self._waiters[arrival.attempt] = waiter
            self._step(arrival)

    def post(self, *events: Event) -> None:
        """Tell the core what has happened; a block that the garbage collector ends may do so while its own thread holds the core."""
        self._posted.extend(events)
        self._take_posted()

    def forget(self, attempt: int) -> None:
        """Tell this attempt's waiter nothing more."""
        self._waiters.pop(attempt, None)

    def tick(self) -> None:
        """Let the core do what is due."""
        with self._held():
            self._catch_up(self._clock())

    def wake_in_s(self) -> float:
        """Return in how many seconds `tick` is due, within an hour."""
        with self._held():
            wake = self._governor.next_wake()
        # At least a millisecond: a sleep that ends early would only be begun again.
        return 3600.0 if wake is None else min(3600.0, max(0.001, wake - self._clock()))

    def snapshot(self) -> Snapshot:
        """Return the core's numbers as they are now."""
        with self._held():
            return self._governor.snapshot(self._clock())

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the core, and take what was posted meanwhile."""
        try:
            with self._lock:
                yield
        finally:
            self._take_posted()

    def _take_posted(self) -> None:
        """Take what was posted, unless the core is held: its holder does so when it lets go."""
        while self._posted and self._lock.acquire(blocking=False):
            try:
                while self._posted:
                    self._step(self._posted.popleft())
            finally:
                self._lock.release()

    def _step(self, event: Event) -> None:
        now = self._clock()
        self._catch_up(now)
        self._tell(self._governor.handle(event, now))

    def _catch_up(self, now: float) -> None:
        wake = self._governor.next_wake()
        if wake is not None and wake <= now:
            self._tell(self._governor.handle(Tick(), now))

    def _tell(self, decisions: tuple[Decision, ...]) -> None:
        for decision in decisions:
            if isinstance(decision, Admit | Yield):
                waiter = self._waiters.pop(decision.attempt, None)
                if waiter is not None and not waiter.decided(decision):
                    self._posted.extend((ClientGone(decision.attempt), Released(decision.attempt)))


_drivers: WeakSet[ThreadedDriver] = WeakSet()


def _begin_all() -> None:
    """A child process has none of its parent's threads and work: a lock that one of them held would be held for good."""
    for driver in list(_drivers):
        driver.begin()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_begin_all)

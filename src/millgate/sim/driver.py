"""The driver in virtual time: the same governor, driven exactly as the gateway drives it.

Events join one queue and are handled one at a time. A listener may post while it is being told of a decision, and
what it posts is handled after the present step. One timer follows `next_wake`. (The gateway's driver does the
same on a real loop; a test feeds both one script and compares every decision.)
"""

from collections import deque
from math import inf
from typing import Any, Protocol

from millgate.core.decisions import Admit, Cancel, Decision, Ended, Queue, Yield
from millgate.core.events import Event, Tick
from millgate.sim.loop import WATCHES, Loop


class DecidingCore(Protocol):
    """What decides: a governor, or anything that it is compared with."""

    def handle(self, event: Event, now: float) -> tuple[Decision, ...]:
        """Take one event and return what is decided."""

    def next_wake(self) -> float | None:
        """Return when a Tick is due at the latest."""


class DecisionCarrier(Protocol):
    """The carrier of decisions."""

    def admitted(self, decision: Admit) -> None:
        """Run it now."""

    def queued(self, decision: Queue) -> None:
        """It waits."""

    def yielded(self, decision: Yield) -> None:
        """It is refused."""

    def cancelled(self, decision: Cancel) -> None:
        """Stop it at its engine and post Released."""

    def ended(self, decision: Ended) -> None:
        """Its outcome is known."""


class VirtualDriver:
    """Feeds events to a core and its decisions to one listener, in virtual time."""

    def __init__(self, core: DecidingCore, loop: Loop, listener: DecisionCarrier) -> None:
        self._core = core
        self._loop = loop
        self._events: deque[Event] = deque()
        self._stepping = False
        self._wake_at = inf
        self._tell: dict[type, Any] = {
            Admit: listener.admitted,
            Queue: listener.queued,
            Yield: listener.yielded,
            Cancel: listener.cancelled,
            Ended: listener.ended,
        }

    def post(self, *events: Event) -> None:
        """Handle these events now, or right after the step that is under way."""
        self._events.extend(events)
        if self._stepping:
            return
        self._stepping = True
        waiting, handle, tell, now = self._events, self._core.handle, self._tell, self._loop.now
        while waiting:
            for decision in handle(waiting.popleft(), now):
                tell[type(decision)](decision)
        self._stepping = False
        wake = self._core.next_wake()
        if wake is not None and wake < self._wake_at:
            self._wake_at = wake
            self._loop.at(wake, self._wake, wake, WATCHES)

    def _wake(self, set_for: float) -> None:
        if set_for != self._wake_at:
            return
        self._wake_at = inf
        self.post(Tick())

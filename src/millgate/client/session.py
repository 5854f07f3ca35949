"""What this process knows of one host, shared by every client of it: the line at home, the window, the budgets.

A burst waits here, in order, where waiting is free and can be cancelled, instead of at the server, where every
attempt costs both sides. For threads and for any number of loops.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Final
from weakref import WeakValueDictionary

from millgate.client.pacing import Cost, Limits, RequestPacing

_FIRST: Final = 4.0
_BACK_OFF: Final = 0.5
_MOST_SAVED: Final = 1000.0
_PROBE_S: Final = 0.5
_RESTART_S: Final = 10.0
"""A gate is there again so soon after it drained, or was killed; a host that is away for longer is down, and calls fail as they come."""
_LOOK_S: Final = 1.0
"""A waiting call looks this often by itself, for answers that were lost and woke no call."""
_RESTED_S: Final = 2.0
"""Calls do not wait for an answer that its owner has not read for so long: left in the middle, it may never be closed."""


@dataclass(frozen=True, slots=True)
class HostSettings:
    """How calls to one host behave; the first client of a host sets them for the process.

    `max_inflight` bounds the window. `retry_share` of the calls, and `retry_floor`, may be retries. `max_retries`
    bounds one call's retries, `max_blind_retries` those without a hint (as the SDKs' own). `limits` are the
    provider's, where known.
    """

    max_inflight: int = 1000
    retry_share: float = 0.2
    retry_floor: float = 10.0
    max_retries: int = 8
    max_blind_retries: int = 2
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for name in ("max_inflight", "retry_share", "retry_floor", "max_retries", "max_blind_retries"):
            least = 1 if name == "max_inflight" else 0
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} is {getattr(self, name)}, the least is {least}")


class Turn:
    """One attempt's place in the line; `wake` is called, from any thread, when it may look again."""

    def __init__(self, order: int, cost: Cost, wake: Callable[[], object]) -> None:
        self.order = order
        self.cost = cost
        self.wake = wake
        self.sent = False
        self.over = False
        self.number = 0
        self.rests_since = inf
        """Since when its answer waits to be read; inf while it is read, or has yet to come."""

    def __lt__(self, other: "Turn") -> bool:
        return self.order < other.order

    def rouse(self) -> bool:
        """Let the call look again; one whose event loop is closed never will, and is over: return False."""
        try:
            self.wake()
        except RuntimeError:
            self.over = True
        return not self.over


class CallWindow:
    """Calls in flight: doubles per round until the first refusal, then grows by one a round and halves on refusal.

    Additive increase, multiplicative decrease (Chiu and Jain 1989). One round's refusals halve it once: calls that
    were sent before the last halving say nothing about the window after it. It grows only while it is what binds.
    """

    def __init__(self, most: int) -> None:
        self.size = min(_FIRST, float(most))
        self.inflight = 0
        self._most = float(most)
        self._probing = True
        self._sent = 0
        self._halved_at = 0

    @property
    def has_room(self) -> bool:
        """Whether one more call may be sent now."""
        return self.inflight < int(self.size)

    def send(self) -> int:
        """Count a call and return its number, for `refused`."""
        self.inflight += 1
        self._sent += 1
        return self._sent

    def answered(self) -> None:
        """A call has been served."""
        if self.inflight + 1 >= int(self.size):
            self.size = min(self._most, self.size + (1.0 if self._probing else 1.0 / self.size))

    def refused(self, number: int) -> None:
        """A call has been refused."""
        self._probing = False
        if number > self._halved_at:
            self.size = max(1.0, self.size * _BACK_OFF)
            self._halved_at = self._sent


class CallRetryBudget:
    """Retries are paid from what first attempts deposit: the amplification is at most 1 + share, and a little.

    `floor` retries are free to begin with, so that a quiet program may retry at all.
    """

    def __init__(self, share: float, floor: float) -> None:
        self._share = share
        self._most = max(floor, _MOST_SAVED)
        self._saved = floor

    def deposit(self) -> None:
        """A first attempt has been made."""
        self._saved = min(self._most, self._saved + self._share)

    def withdraw(self) -> bool:
        """Pay for a retry; return whether it could be paid."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True


class HostSession:
    """One host's line; every method is quick and thread-safe."""

    def __init__(self, settings: HostSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.window = CallWindow(settings.max_inflight)
        self.budget = CallRetryBudget(settings.retry_share, settings.retry_floor)
        self._pace = RequestPacing(settings.limits, clock())
        self.now = clock
        self._lock = threading.Lock()
        self._line: list[Turn] = []
        self._inflight: dict[int, Turn] = {}
        self.lost: deque[Turn] = deque()
        """Calls whose answer has no reference left, to be ended by the next call."""
        # The turn that waits at the front for the pace, and knows it.
        self._told: Turn | None = None
        self._missed_at: float | None = None
        self._held_until = 0.0
        self.next_order = count(1).__next__
        """Returns a call's place among all calls: older calls go first, retries too."""

    def enter(self, turn: Turn) -> None:
        """Stand in line; the turn is woken when it may go."""
        with self._lock:
            heappush(self._line, turn)
            self._pump()

    def look(self, turn: Turn) -> float:
        """Return how long to wait at most before looking again; sends every call that may go."""
        with self._lock:
            if not self.window.has_room:
                self._lose_rested()
            wait_s = self._pump()
            at_front = bool(self._line) and self._line[0] is turn
            return min(wait_s, _LOOK_S) if at_front and wait_s is not None else _LOOK_S

    def leave(self, turn: Turn, *, served: bool = False, refused: bool = False) -> None:
        """End a turn, in line or in flight; again is harmless."""
        with self._lock:
            if turn.over:
                return
            turn.over = True
            if turn.sent:
                self._land(turn)
                if served:
                    self.window.answered()
                elif refused:
                    self.window.refused(turn.number)
            self._pump()

    def missed(self, *, drains: bool = False) -> None:
        """The host took no call, as while it `drains` and restarts: send one each half second, or the whole line would be lost to it."""
        with self._lock:
            now = self.now()
            self._missed_at = now if drains or self._missed_at is None else self._missed_at
            self._hold(now)

    def reached(self) -> None:
        """The host has answered: the line goes on."""
        if self._missed_at is not None:
            with self._lock:
                self._missed_at, self._held_until = None, 0.0
                self._pump()

    def _hold(self, now: float) -> None:
        if self._missed_at is not None and now - self._missed_at < _RESTART_S:
            self._held_until = now + _PROBE_S

    def began(self) -> None:
        """Count a first attempt."""
        with self._lock:
            self.budget.deposit()

    def may_retry(self) -> bool:
        """Pay for a retry; return whether there was anything to pay with."""
        with self._lock:
            return self.budget.withdraw()

    @property
    def waiting(self) -> int:
        """How many calls stand in line."""
        with self._lock:
            return sum(not turn.over for turn in self._line)

    def _pump(self) -> float | None:
        """Send from the front of the line what may go; return how long the front has to wait for its pace."""
        line, now = self._line, self.now()
        while self.lost:
            turn = self.lost.popleft()
            if not turn.over:
                turn.over = True
                self._land(turn)
        while line and (line[0].over or self.window.has_room):
            front = line[0]
            if not front.over:
                wait_s = max(self._held_until - now, self._pace.wait_s(front.cost, now))
                if wait_s > 0.0:
                    if self._told is not front:
                        self._told = front
                        front.rouse()
                    return wait_s
                self._hold(now)
                self._pace.take(front.cost)
                front.number = self.window.send()
                front.sent = True
                self._inflight[front.number] = front
                if not front.rouse():
                    self._land(front)
            heappop(line)
        return None

    def _land(self, turn: Turn) -> None:
        del self._inflight[turn.number]
        self.window.inflight -= 1

    def _lose_rested(self) -> None:
        """Let go of the calls whose answers have not been read for long; a few too many are refused by the server, and no more."""
        latest = self.now() - _RESTED_S
        self.lost += [turn for turn in self._inflight.values() if turn.rests_since <= latest]


# The process is a part: one that was forked begins anew, as no call of its parent ever ends there.
HostKey = tuple[int, str, str, int | None]
_SESSIONS: WeakValueDictionary[HostKey, HostSession] = WeakValueDictionary()
_HOMES_LOCK = threading.Lock()


def session_of(key: HostKey, settings: HostSettings) -> HostSession:
    """Return the process's one session of this host; `settings` count when it is new."""
    with _HOMES_LOCK:
        return _SESSIONS.setdefault(key, HostSession(settings))

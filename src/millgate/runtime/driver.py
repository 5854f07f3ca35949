"""The driver owns the governor: every event passes here, one at a time, and every decision leaves from here.

Prior art: mitmproxy's layers and aioquic's connection, where a pure state machine is driven by one object that owns
the clock and the timer. What matters:

- *One writer, no re-entry.* A listener that is told of an admission may post events at once (a dead engine fails
  within the same call stack). They join the one queue and are handled after the present step.
- *One timer.* The core says when it wants to be woken; the timer is replaced only when that moves earlier. A timer
  that fires early finds nothing due and is set again. With a timer per attempt the loop's heap would churn. What is due and
  not awaited, as where nothing is queued, is made up for before the next event or question: a wake costs 7,000 instructions.
- *Listeners and observers cannot break it.* Their exceptions go to the loop's handler and the queue moves on; a gate that
  stopped deciding because one connection misbehaved would hold every other client for ever.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import count
from math import inf
from typing import Protocol

from millgate.core.decisions import Admit, Cancel, Decision, Ended, Explanation, Queue, Yield
from millgate.core.events import Arrived, Event, QuotaUse, StoodStill, Tick
from millgate.core.fast_records import number_of
from millgate.core.governor.verbs import Core
from millgate.core.instruments import StepObserver
from millgate.core.settings import Settings
from millgate.core.snapshot import Capacity, SharedUse, Snapshot
from millgate.runtime.clock import Clock
from millgate.runtime.lag import STALL_S, LoopLag


class DecisionListener(Protocol):
    """The receiver of one attempt's decisions, in the order in which they were made."""

    def on_admit(self, decision: Admit) -> None:
        """Run it now."""

    def on_queue(self, decision: Queue) -> None:
        """It waits, by default in silence."""
        del decision

    def on_yield(self, decision: Yield) -> None:
        """It is refused; nothing follows."""

    def on_cancel(self, decision: Cancel) -> None:
        """Stop it at its engine, tell its client, and post Released."""

    def on_ended(self, decision: Ended) -> None:
        """Its outcome is known; nothing follows. By default its client has been told."""
        del decision


class Driver:
    """Feeds events to a governor and its decisions to listeners and observers, on one loop's thread."""

    def __init__(
        self, governor: Core, clock: Clock, loop: asyncio.AbstractEventLoop, first_attempt: int = 1
    ) -> None:
        self._governor = governor
        self._now = clock.now
        self._loop = loop
        self._events: deque[Event] = deque()
        self._listeners: dict[int, DecisionListener] = {}
        self.next_attempt = count(first_attempt).__next__
        """Returns a number that no other attempt of this process has, from `first_attempt` on."""
        self._stepping = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = self.now = 0.0
        """`now` is the core's time in the present step, or in the last one."""
        self._due_at = inf
        self.before_step: Callable[[], Event | None] | None = None
        """Tells of what has ended by a clock that the core does not have; the core hears of it before anything else."""
        self.lag: LoopLag | None = None
        """Whose look at the loop is overdue, that loop has stood still: the core hears of it before what came meanwhile."""
        self._told_of = 0.0
        self.observers: list[StepObserver] = []
        self.cancelled = 0
        """How many attempts were cancelled while they ran: the grace of a drain was over."""

    # ---- what doors call

    def attach(self, attempt: int, listener: DecisionListener) -> None:
        """Tell this listener of the attempt's decisions until its last one; call it before posting Arrived."""
        self._listeners[attempt] = listener

    def arrive(self, arrival: Arrived, listener: DecisionListener) -> None:
        """Attach the listener to this arrival's attempt and post the arrival."""
        self._listeners[number_of(arrival)] = listener
        self.post(arrival)

    def post(self, event: Event, *more: Event) -> None:
        """Handle these events in order, now or right after the step that is under way."""
        if self._stepping:
            self._events.append(event)
        if more:
            self._events.extend(more)
        if not self._stepping:
            self._run(event)

    def refuse(self, arrival: Arrived, decision: Yield) -> None:
        """Show the observers what a door has refused by itself; the core hears nothing, so it costs next to nothing."""
        self._show(arrival, (decision,), self._now())

    def snapshot(self) -> Snapshot:
        """Return the core's numbers as they are now."""
        self._catch_up()
        return self._governor.snapshot(self._now())

    def capacity(self) -> Capacity:
        """Return how many streams run and may run, as the snapshot does and far cheaper."""
        self._catch_up()
        return self._governor.capacity()

    def explain(self, arrival: Arrived) -> Explanation:
        """Return what this arrival would get now; changes nothing."""
        self._catch_up()
        return self._governor.explain(arrival, self._now())

    def shared_use(self) -> SharedUse:
        """Return what this replica holds and wants of what a cluster shares; changes nothing."""
        self._catch_up()
        return self._governor.shared_use(self._now())

    def quota_uses(self) -> tuple[QuotaUse, ...]:
        """Return what is used of quotas; changes nothing."""
        self._catch_up()
        return self._governor.quota_uses(self._now())

    def reconfigure(self, settings: Settings) -> None:
        """Give the core new settings and carry out what they decide; not to be called from a listener."""
        assert not self._stepping
        self._run()
        self._stepping = True
        try:
            self._tell(self._governor.reconfigure(settings, self._now()))
        finally:
            self._stepping = False
        self._run()

    def close(self) -> None:
        """Stop the timer; events posted later are still handled, but no timer wakes the core."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---- the step

    def _run(self, event: Event | None = None) -> None:
        """Take this event, before it what is due, and after it what was posted meanwhile."""
        events, now = self._events, self._now()
        self._stepping = True
        untaken = event
        try:
            if self.lag is not None and now - self.lag.due > STALL_S and self._told_of != self.lag.due:
                self._told_of = self.lag.due
                self._step(StoodStill(), now)
            if self.before_step is not None and (ended := self.before_step()) is not None:
                self._step(ended, now)
            while now >= self._due_at:
                due_at = self._due_at
                # What is awaited happens now; anything else has happened when it was due, but for the time of a standstill.
                self._step(Tick(), now if self._governor.is_awaited() else max(due_at, self.now))
                wake = self._governor.next_wake()
                self._due_at = inf if wake is None or wake <= due_at else wake
            if event is not None:
                untaken = None
                self._step(event, now)
            while events:
                self._step(events.popleft(), self._now())
        finally:
            if untaken is not None:
                events.appendleft(untaken)  # the core has failed on what was due, and has this still to come
            self._stepping = False
            self._look_ahead()

    def _step(self, event: Event, now: float) -> None:
        self.now = now
        decisions = self._governor.handle(event, now)
        if self.observers:
            self._show(event, decisions, now)
        if decisions:
            self._tell(decisions)

    def _look_ahead(self) -> None:
        """Take note of when the core is to be woken, and set the timer where that is awaited and sooner."""
        wake = self._governor.next_wake()
        self._due_at = inf if wake is None else wake
        is_sooner = self._timer is None or self._due_at < self._timer_at
        if wake is not None and is_sooner and self._governor.is_awaited():
            self._arm(wake)

    def _catch_up(self) -> None:
        """Do what has fallen due, unless a step is under way."""
        if not self._stepping and self._now() >= self._due_at:
            self._run()

    def _show(self, event: Event, decisions: tuple[Decision, ...], now: float) -> None:
        """Show a step to observers; one that fails on it must not keep its decisions from those whom they are for."""
        for observer in self.observers:
            try:
                observer.on_step(event, decisions, now)
            except Exception as error:  # noqa: BLE001 - see the head of this page
                context = {"message": "an observer of the core's steps failed", "exception": error}
                self._loop.call_exception_handler(context)

    def _tell(self, decisions: tuple[Decision, ...]) -> None:
        listeners = self._listeners
        for decision in decisions:
            try:
                number = number_of(decision)
                if (listener := listeners.get(number)) is None:
                    continue
                if isinstance(decision, Admit):  # the most frequent first
                    listener.on_admit(decision)
                elif isinstance(decision, Ended):
                    del listeners[number]
                    listener.on_ended(decision)
                elif isinstance(decision, Yield):
                    del listeners[number]
                    listener.on_yield(decision)
                elif isinstance(decision, Queue):
                    listener.on_queue(decision)
                else:
                    self.cancelled += 1
                    listener.on_cancel(decision)
            except Exception as error:  # noqa: BLE001 - see the head of this page
                context = {
                    "message": f"the listener of attempt {decision.attempt} failed",
                    "exception": error,
                }
                self._loop.call_exception_handler(context)

    # ---- the timer

    def _arm(self, wake: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = wake
        # At least a millisecond: loops round, and a timer that fires early would only be set again.
        self._timer = self._loop.call_later(max(0.001, wake - self._now()), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._catch_up()
        self._look_ahead()

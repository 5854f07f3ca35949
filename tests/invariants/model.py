"""What an outsider knows of a gate: built from the events handed in and the decisions that came back, nothing else."""

from dataclasses import dataclass, field

from millgate.core.decisions import Admit, Cancel, Decision, Ended, Explanation, Leg, Queue, Yield
from millgate.core.events import Arrived, ClientGone, Event, Failed, Released
from millgate.core.words import Outcome


@dataclass
class Known:
    """One attempt as its door knows it."""

    arrival: Arrived
    lane: str
    first_seen: float
    deadline: float
    arrived_at: float
    leg: Leg | None = None
    tried: str | None = None
    permits: int = 0
    gone: bool = False
    ended: bool = False
    released: bool = False
    due: bool = False
    """Whether it may be somebody who is back when told, or who comes for the last time."""


@dataclass
class Promise:
    """Who was refused, when it had been told to be back, and how long that was."""

    arrival: Arrived
    due_at: float
    hint_s: float

    def is_due(self, now: float) -> bool:
        """Return whether a return now is no longer early: by a second at most, and at most half of the hint."""
        return now >= self.due_at - min(1.0, self.hint_s / 2.0)


# Tenant, body and age: by these a gate knows who is back.
_Who = tuple[str, int | None, float]


@dataclass
class Model:
    """Every attempt, and its one outcome when it has one.

    `promises` are all that were made: of requests that are equal in everything nobody outside knows which is back.
    """

    attempts: dict[int, Known] = field(default_factory=dict)
    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    queued: dict[int, Known] = field(default_factory=dict)
    running: dict[int, Known] = field(default_factory=dict)
    departing: dict[int, Known] = field(default_factory=dict)
    promises: dict[_Who, list[Promise]] = field(default_factory=dict)
    now: float = 0.0

    def arrives(self, arrival: Arrived, explained: Explanation, now: float) -> None:
        """An attempt is handed in; `explained` is what the gate said about it beforehand."""
        assert arrival.attempt not in self.attempts
        self.attempts[arrival.attempt] = known = Known(
            arrival, explained.lane, explained.first_seen, explained.deadline, now
        )
        promises = self._promises_to(known, begins_anew=explained.recognised and explained.first_seen == now)
        is_last_chance = (arrival.retry_count or 0) >= 2
        known.due = explained.recognised and (is_last_chance or any(each.is_due(now) for each in promises))

    def _promises_to(self, known: Known, *, begins_anew: bool) -> list[Promise]:
        """Return what it may have been promised; one that was asked back after its deadline comes with a new age."""
        if not begins_anew:
            return self.promises.get(_who(known), [])
        tenant, body, _ = _who(known)
        return [each for who, made in self.promises.items() if who[:2] == (tenant, body) for each in made]

    def takes(self, event: Event, decisions: tuple[Decision, ...]) -> None:
        """Take the decisions in their order; a decision that is not possible fails here."""
        if isinstance(event, ClientGone) and event.attempt in self.attempts:
            self.attempts[event.attempt].gone = True
        if isinstance(event, Released) and self.departing.pop(event.attempt, None) is not None:
            self.attempts[event.attempt].released = True
        if isinstance(event, Failed):
            self._fails(event, decisions)
        for decision in decisions:
            self._takes_one(decision)

    def _fails(self, event: Failed, decisions: tuple[Decision, ...]) -> None:
        """An engine fails it: unless that is its end it waits for another, be it for no time at all."""
        known = self.running.get(event.attempt)
        ends = any(isinstance(each, Ended) and each.attempt == event.attempt for each in decisions[:1])
        if known is not None and not ends:
            assert known.leg is not None
            known.tried, known.leg = known.leg.engine, None
            self.queued[event.attempt] = self.running.pop(event.attempt)

    def next_promise(self, now: float) -> Promise | None:
        """Return the promise that falls due next."""
        coming = [each for made in self.promises.values() for each in made if each.due_at >= now]
        return min(coming, key=lambda each: each.due_at, default=None)

    def _takes_one(self, decision: Decision) -> None:
        attempt = self.attempts[decision.attempt]
        assert not attempt.ended, f"a decision after the end: {decision}"
        if isinstance(decision, Admit):
            self.queued.pop(decision.attempt, None)
            (attempt.leg,) = decision.legs
            attempt.permits += 1
            self.running[decision.attempt] = attempt
        elif isinstance(decision, Queue):
            self.queued[decision.attempt] = attempt
        elif isinstance(decision, Yield):
            if decision.retry:
                promise = Promise(attempt.arrival, self.now + decision.retry_after_s, decision.retry_after_s)
                self.promises.setdefault(_who(attempt), []).append(promise)
            # Out of the queue an Ended follows; at the door the yield itself is the end.
            if decision.attempt not in self.queued:
                self._end(attempt, Outcome.YIELDED)
        elif isinstance(decision, Cancel):
            assert decision.attempt in self.running
        elif isinstance(decision, Ended):
            self._ends(decision, attempt)

    def _ends(self, decision: Ended, attempt: Known) -> None:
        self._end(attempt, decision.outcome)
        if self.queued.pop(decision.attempt, None) is None:
            self.departing[decision.attempt] = self.running.pop(decision.attempt)

    def _end(self, attempt: Known, outcome: Outcome) -> None:
        attempt.ended = True
        self.outcomes[outcome] += 1


def _who(known: Known) -> _Who:
    body = known.arrival.fingerprint
    return known.arrival.tenant, None if body is None else body(), known.first_seen

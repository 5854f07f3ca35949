"""What an outsider knows of a gate: built from the events handed in and the decisions that came back, nothing else."""

from dataclasses import dataclass, field

from headgate.core.decisions import Admit, Cancel, Decision, Ended, Explanation, Hold, Leg, Yield
from headgate.core.events import Arrived, ClientGone, Event, Failed, Released
from headgate.core.words import Outcome


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


@dataclass
class Model:
    """Every attempt, and its one outcome when it has one."""

    attempts: dict[int, Known] = field(default_factory=dict)
    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    held: dict[int, Known] = field(default_factory=dict)
    running: dict[int, Known] = field(default_factory=dict)
    departing: dict[int, Known] = field(default_factory=dict)

    def arrives(self, arrival: Arrived, explained: Explanation, now: float) -> None:
        """An attempt is handed in; `explained` is what the gate said about it beforehand."""
        assert arrival.attempt not in self.attempts
        self.attempts[arrival.attempt] = Known(
            arrival, explained.lane, explained.first_seen, explained.deadline, now
        )

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
            self.held[event.attempt] = self.running.pop(event.attempt)

    def _takes_one(self, decision: Decision) -> None:
        attempt = self.attempts[decision.attempt]
        assert not attempt.ended, f"a decision after the end: {decision}"
        if isinstance(decision, Admit):
            self.held.pop(decision.attempt, None)
            (attempt.leg,) = decision.legs
            attempt.permits += 1
            self.running[decision.attempt] = attempt
        elif isinstance(decision, Hold):
            self.held[decision.attempt] = attempt
        elif isinstance(decision, Yield):
            # Out of the queue an Ended follows; at the door the yield itself is the end.
            if decision.attempt not in self.held:
                self._end(attempt, Outcome.YIELDED)
        elif isinstance(decision, Cancel):
            assert decision.attempt in self.running
        elif isinstance(decision, Ended):
            self._ends(decision, attempt)

    def _ends(self, decision: Ended, attempt: Known) -> None:
        self._end(attempt, decision.outcome)
        if self.held.pop(decision.attempt, None) is None:
            self.departing[decision.attempt] = self.running.pop(decision.attempt)

    def _end(self, attempt: Known, outcome: Outcome) -> None:
        attempt.ended = True
        self.outcomes[outcome] += 1

"""The observer behind the metrics, the log and `why`: sees each step once and tells all three.

It stands on the path of every request, so it only counts and appends: no words, no encoding, no I/O. One object
instead of three, because what costs most is being called.
"""

from typing import NamedTuple

from headgate.core.decisions import Admit, Decision, Ended, Yield
from headgate.core.events import Arrived, EngineProgress, Event, FirstToken
from headgate.core.words import Outcome
from headgate.observe.attempt_log import AttemptLog, Finish
from headgate.observe.traffic import Traffic
from headgate.observe.why import Facts, Ring, facts_of

_TENANT = Arrived._fields.index("tenant")
_LANE = Arrived._fields.index("lane")
_DUE_AT = Arrived._fields.index("due_at")
_WHOLE = (Outcome.GOOD, Outcome.LATE)


class _Open(NamedTuple):
    """An attempt that is not over: what it asked, and how it was admitted."""

    facts: Facts
    admit: Admit | None


class Witness:
    """Observes a driver's steps; each of the three may be left out.

    `first_lane` takes what names none. Everything kept is bounded by what is under way and by the parts' own bounds.
    """

    __slots__ = ("_given", "_log", "_open", "_ring", "_seen", "_traffic", "first_lane")

    def __init__(
        self,
        traffic: Traffic | None = None,
        ring: Ring | None = None,
        log: AttemptLog | None = None,
        first_lane: str = "",
    ) -> None:
        self.first_lane = first_lane
        self._traffic = traffic
        self._ring = ring
        self._log = log
        self._open: dict[int, _Open] = {}
        self._given: dict[int, bytes] = {}
        self._seen: dict[int, tuple[float, int]] = {}

    def named(self, attempt: int, request_id: bytes) -> None:
        """Take note of the id that a client gave; call it before the arrival is posted, and for no other ids."""
        if self._ring is not None:
            self._ring.name(attempt, request_id)
        if self._log is not None:
            self._given[attempt] = request_id

    def on_step(self, event: Event, decisions: tuple[Decision, ...], now: float) -> None:
        """Keep what was decided at core time `now`."""
        kind = type(event)
        facts: Facts | None = None
        if isinstance(event, Arrived):
            facts = facts_of(event)
            self._open[event.attempt] = _Open(facts, None)
            if self._traffic is not None:
                self._traffic.arrived(event.tenant, now)
        elif kind is FirstToken or kind is EngineProgress:
            self._heard(event, now)
        if decisions:
            if self._ring is not None:
                self._ring.add((now, facts, decisions))
            for decision in decisions:
                self._note(decision, now)

    def _note(self, decision: Decision, now: float) -> None:
        if isinstance(decision, Admit):
            opened = self._open.get(decision.attempt)
            if opened is not None:
                self._admitted(opened, decision, now)
        elif isinstance(decision, Ended):
            self._ended(decision, now)
        elif isinstance(decision, Yield):
            self._refused(decision, now)

    def _admitted(self, opened: _Open, decision: Admit, now: float) -> None:
        facts = opened.facts
        self._open[decision.attempt] = _Open(facts, decision)
        if facts[_DUE_AT] is not None and opened.admit is None and self._traffic is not None:
            self._traffic.returned(facts[_LANE] or self.first_lane, facts[_DUE_AT], now)

    def _refused(self, decision: Yield, now: float) -> None:
        """Close the books on a refusal; where it was held before, its end comes next and finds them closed."""
        opened = self._open.pop(decision.attempt, None)
        if opened is None:
            return
        if self._traffic is not None:
            facts, hint_s = opened.facts, decision.retry_after_s if decision.retry else None
            self._traffic.refused(facts[_TENANT], facts[_LANE] or self.first_lane, hint_s)
        self._write(opened, decision, now)

    def _ended(self, decision: Ended, now: float) -> None:
        opened = self._open.pop(decision.attempt, None)
        seen = self._seen.pop(decision.attempt, None)
        if opened is None:
            return
        traffic = self._traffic
        if traffic is not None and decision.engine is not None:
            traffic.ended(opened.facts[_TENANT], decision)
            # Only a whole answer says how many tokens came since the last look.
            if seen is not None and decision.outcome in _WHOLE and decision.output_tokens > seen[1]:
                traffic.decoded(decision.engine, now, now - seen[0], decision.output_tokens - seen[1])
        self._write(opened, decision, now)

    def _write(self, opened: _Open, final: Ended | Yield, now: float) -> None:
        if self._log is not None:
            given = self._given.pop(final.attempt, None) if self._given else None
            self._log.add(Finish(now, opened.facts, opened.admit, final, given))

    def _heard(self, event: Event, now: float) -> None:
        """Note how far streams have come, and what that says of the time between their tokens."""
        if self._traffic is None:
            return
        if isinstance(event, FirstToken):
            self._seen[event.attempt] = now, 1
        elif isinstance(event, EngineProgress):
            for attempt, tokens in event.streams:
                seen = self._seen.get(attempt)
                if seen is not None and tokens > seen[1]:
                    self._traffic.decoded(event.engine, now, now - seen[0], tokens - seen[1])
                    self._seen[attempt] = now, tokens

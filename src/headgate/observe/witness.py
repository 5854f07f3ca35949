"""The observer behind the metrics, the log and `why`: sees each step once and tells all three.

It stands on the path of every request, so there it only appends what happened to a list. The books are done for many
steps together, which costs less than half of doing them one by one: between two requests the processor's caches have
been filled with other things. They are done after so many steps, at the first step after a tenth of a second (engines
are polled once a second, so there is always one), and before anybody reads them.
"""

from collections.abc import Sequence
from typing import Final

from headgate.core.decisions import Admit, Decision, Ended, Yield
from headgate.core.events import Arrived, EngineProgress, Event, FirstToken
from headgate.core.words import Outcome
from headgate.observe.attempt_log import AttemptLog, Finish
from headgate.observe.traffic import Traffic
from headgate.observe.why import Facts, Ring, facts_of

_MOST_STEPS: Final = 256
"""Done together: about half a millisecond, which no stream notices."""
_WITHIN_S: Final = 0.1
_TENANT: Final = Arrived._fields.index("tenant")
_LANE: Final = Arrived._fields.index("lane")
_DUE_AT: Final = Arrived._fields.index("due_at")
_WHOLE: Final = (Outcome.GOOD, Outcome.LATE)

Seen = tuple[float, Facts | None, FirstToken | EngineProgress | None, tuple[Decision, ...]]
"""One step: its core time, what arrived, what else happened as far as it is of use, and what was decided."""


class Witness:
    """Observes a driver's steps; each of the three may be left out.

    `first_lane` takes what names none. Everything kept is bounded by what is under way and by the parts' own bounds.
    """

    __slots__ = (
        "_admits",
        "_facts",
        "_given",
        "_heard",
        "_log",
        "_ring",
        "_steps",
        "_traffic",
        "_until",
        "first_lane",
    )

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
        self._steps: list[Seen] = []
        self._until = 0.0
        self._facts: dict[int, Facts] = {}
        self._admits: dict[int, Admit] = {}
        self._given: dict[int, bytes] = {}
        self._heard: dict[int, tuple[float, int]] = {}

    # ---- on the path

    def named(self, attempt: int, request_id: bytes | None) -> None:
        """Take note of the id that a client gave, None where it gave none; call it before the arrival is posted."""
        if request_id is None:
            return
        if self._ring is not None:
            self._ring.name(attempt, request_id)
        if self._log is not None:
            self._given[attempt] = request_id

    def on_step(self, event: Event, decisions: tuple[Decision, ...], now: float) -> None:
        """Keep what was decided at core time `now`."""
        if isinstance(event, Arrived):
            self._steps.append((now, facts_of(event), None, decisions))
        elif isinstance(event, FirstToken | EngineProgress):
            self._steps.append((now, None, event, decisions))
        elif decisions:
            self._steps.append((now, None, None, decisions))
        if now >= self._until or len(self._steps) >= _MOST_STEPS:
            self._until = now + _WITHIN_S
            self.settle()

    # ---- in the books

    def settle(self) -> None:
        """Do the books of every step so far; whoever reads them calls it first."""
        steps, self._steps = self._steps, []
        if self._ring is not None:
            self._ring.extend([(now, facts, decisions) for now, facts, _, decisions in steps if decisions])
        if self._traffic is not None or self._log is not None:
            self._enter(steps)

    def _enter(self, steps: Sequence[Seen]) -> None:
        traffic = self._traffic
        for now, facts, heard, decisions in steps:
            if facts is not None:
                self._facts[facts[0]] = facts
                if traffic is not None:
                    traffic.arrived(facts[_TENANT], now)
            elif heard is not None and traffic is not None:
                self._hear(traffic, heard, now)
            for decision in decisions:
                if isinstance(decision, Ended):
                    self._ended(decision, now)
                elif isinstance(decision, Admit):
                    self._admitted(decision, now)
                elif isinstance(decision, Yield):
                    self._refused(decision, now)

    def _admitted(self, decision: Admit, now: float) -> None:
        facts = self._facts.get(decision.attempt)
        if facts is None:
            return
        again = decision.attempt in self._admits
        self._admits[decision.attempt] = decision
        if facts[_DUE_AT] is not None and not again and self._traffic is not None:
            self._traffic.returned(facts[_LANE] or self.first_lane, facts[_DUE_AT], now)

    def _refused(self, decision: Yield, now: float) -> None:
        """Close the books on a refusal; where it was held before, its end comes next and finds them closed."""
        facts = self._facts.pop(decision.attempt, None)
        if facts is None:
            return
        if self._traffic is not None:
            hint_s = decision.retry_after_s if decision.retry else None
            self._traffic.refused(facts[_TENANT], facts[_LANE] or self.first_lane, hint_s)
        self._write(facts, decision, now)

    def _ended(self, decision: Ended, now: float) -> None:
        number = decision.attempt
        facts = self._facts.pop(number, None)
        heard = self._heard.pop(number, None) if self._heard else None
        if facts is None:
            return
        if self._traffic is not None and decision.engine is not None:
            self._traffic.ended(facts[_TENANT], decision)
            # Only a whole answer says how many tokens came since the last look.
            if heard is not None and decision.outcome in _WHOLE and decision.output_tokens > heard[1]:
                self._traffic.decoded(decision.engine, now, now - heard[0], decision.output_tokens - heard[1])
        self._write(facts, decision, now)

    def _write(self, facts: Facts, final: Ended | Yield, now: float) -> None:
        admit = self._admits.pop(final.attempt, None)
        if self._log is not None:
            given = self._given.pop(final.attempt, None) if self._given else None
            self._log.add(Finish(now, facts, admit, final, given))

    def _hear(self, traffic: Traffic, event: FirstToken | EngineProgress, now: float) -> None:
        """Note how far streams have come, and what that says of the time between their tokens."""
        if isinstance(event, FirstToken):
            self._heard[event.attempt] = now, 1
            return
        for attempt, tokens in event.streams:
            heard = self._heard.get(attempt)
            if heard is not None and tokens > heard[1]:
                traffic.decoded(event.engine, now, now - heard[0], tokens - heard[1])
                self._heard[attempt] = now, tokens

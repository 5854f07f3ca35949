"""The observer behind the metrics, the page, the log and `why`: sees each step once and tells all of them.

It stands on the path of every request, so there it only appends what happened to a list. The books are done for many
steps together, which costs a third of doing them one by one: between two requests the processor's caches have been
filled with other things. They are done after so many steps, at the first step after a tenth of a second (engines
are polled once a second, so there is nearly always one), or by a timer where none comes, and before anybody reads them.
"""

from collections.abc import Callable, Sequence
from typing import Final

from headgate.core.decisions import Admit, Decision, Ended, Yield
from headgate.core.events import Arrived, EngineProgress, Event, FirstToken
from headgate.core.words import Outcome
from headgate.observe.attempt_log import AttemptLog
from headgate.observe.refusals import Refusals
from headgate.observe.ring import Facts, Kept, Ring, facts_of, place_in_facts
from headgate.observe.traffic import Traffic

_MOST_STEPS: Final = 512
"""Done together: less than a millisecond, which no stream notices."""
_WITHIN_S: Final = 0.1
_TENANT: Final = place_in_facts("tenant")
_LANE: Final = place_in_facts("lane")
_MODEL: Final = place_in_facts("model")
_WHOLE: Final = (Outcome.GOOD, Outcome.LATE)

Defer = Callable[[float, Callable[[], None]], object]
"""Calls back after so many seconds, as an event loop's `call_later` does."""


class Witness:
    """Observes a driver's steps; without a `log` none is written, and `first_lane` takes what names none.

    Everything kept is bounded by what is under way and by the parts' own bounds. Whoever wants to look at the core now
    and then is called from `on_beat`, with the core's time, about every tenth of a second in which anything happens.
    """

    __slots__ = (
        "_admits",
        "_awaits",
        "_defer",
        "_facts",
        "_given",
        "_heard",
        "_log",
        "_refusals",
        "_ring",
        "_steps",
        "_traffic",
        "_until",
        "first_lane",
        "on_beat",
    )

    def __init__(
        self,
        ring: Ring,
        traffic: Traffic,
        refusals: Refusals,
        log: AttemptLog | None = None,
        first_lane: str = "",
        defer: Defer | None = None,
    ) -> None:
        self.first_lane = first_lane
        self._defer = defer
        self._awaits = False
        self.on_beat: list[Callable[[float], None]] = []
        self._ring = ring
        self._traffic = traffic
        self._refusals = refusals
        self._log = log
        self._steps: list[Kept] = []
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
        self._ring.name(attempt, request_id)
        if self._log is not None:
            self._given[attempt] = request_id

    def on_step(self, event: Event, decisions: tuple[Decision, ...], now: float) -> None:
        """Keep what was decided at core time `now`."""
        # By the type itself, here and below: `isinstance` takes twice as long to say no.
        if type(event) is Arrived:
            self._steps.append((now, facts_of(event), decisions))
        else:
            if decisions:
                self._steps.append((now, None, decisions))
            if type(event) is FirstToken:
                self._heard[event.attempt] = now, 1
            elif type(event) is EngineProgress:
                self._hear(event, now)
        if now >= self._until or len(self._steps) >= _MOST_STEPS:
            self._until = now + _WITHIN_S
            self.settle()
            for look in self.on_beat:
                look(now)
        elif self._defer is not None and not self._awaits:
            self._awaits = True
            self._defer(_WITHIN_S, self._late)

    def _late(self) -> None:
        """Do the books of what no later step has brought in."""
        self._awaits = False
        self.settle()

    # ---- in the books

    def settle(self) -> None:
        """Do the books of every step so far; whoever reads them calls it first."""
        steps, self._steps = self._steps, []
        self._ring.extend(steps)
        self._enter(steps)
        if self._log is not None:
            self._log.hand_over()

    def _enter(self, steps: Sequence[Kept]) -> None:
        for now, facts, decisions in steps:
            if facts is not None:
                self._facts[facts[0]] = facts
                self._traffic.arrived(facts[_TENANT], now)
            for decision in decisions:
                if type(decision) is Admit:
                    self._admitted(decision, now)
                elif type(decision) is Ended:
                    self._ended(decision, now)
                elif type(decision) is Yield:
                    self._refused(decision, now)

    def _admitted(self, decision: Admit, now: float) -> None:
        if self._log is not None:
            self._admits[decision.attempt] = decision
        if decision.window_s or decision.due_at is not None:
            facts = self._facts.get(decision.attempt)
            if facts is not None:
                self._traffic.admitted(facts[_LANE] or self.first_lane, decision, now)

    def _refused(self, decision: Yield, now: float) -> None:
        """Close the books on a refusal; where it was held before, its end comes next and finds them closed."""
        self._refusals.note(decision, now)
        facts = self._facts.pop(decision.attempt, None)
        if facts is None:
            return
        hint_s = decision.retry_after_s if decision.retry else None
        self._traffic.refused(facts[_TENANT], facts[_LANE] or self.first_lane, hint_s)
        if self._log is not None:
            self._write(self._log, facts, decision, now)

    def _ended(self, decision: Ended, now: float) -> None:
        number = decision.attempt
        facts = self._facts.pop(number, None)
        heard = self._heard.pop(number, None) if self._heard else None
        if facts is None:
            return
        if decision.engine is not None:
            self._traffic.ended(facts[_TENANT], facts[_MODEL], decision, now)
            # Only a whole answer says how many tokens came since the last look.
            if heard is not None and decision.outcome in _WHOLE and decision.output_tokens > heard[1]:
                self._traffic.decoded(decision.engine, now, now - heard[0], decision.output_tokens - heard[1])
        if self._log is not None:
            self._write(self._log, facts, decision, now)

    def _write(self, log: AttemptLog, facts: Facts, final: Ended | Yield, now: float) -> None:
        admit = self._admits.pop(final.attempt, None)
        given = self._given.pop(final.attempt, None) if self._given else None
        log.add(now, facts, admit, final, given)

    def _hear(self, event: EngineProgress, now: float) -> None:
        """Note how far streams have come, and what that says of the time between their tokens."""
        for attempt, tokens in event.streams:
            heard = self._heard.get(attempt)
            if heard is not None and tokens > heard[1]:
                self._traffic.decoded(event.engine, now, now - heard[0], tokens - heard[1])
                self._heard[attempt] = now, tokens

"""The observer behind the metrics, the page, the log and `why`: sees each step once and tells all of them.

It stands on the path of every request, so there it only appends what happened to a list. The books are done for many
steps together, which costs a third of doing them one by one: between two requests the processor's caches have been
filled with other things. They are done after so many steps, and at the first step after a tenth of a second. Engines
are polled once a second, so there is nearly always one. They are also done by a timer where none comes, and before
every read.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from millgate.core.decisions import Admit, Decision, Ended, Yield
from millgate.core.events import Arrived, EngineProgress, Event, FirstToken, HeldBack
from millgate.core.fast_records import number_of
from millgate.core.instruments import StepObserver
from millgate.core.words import FailureKind, Outcome
from millgate.observe.attempt_log import AttemptLog
from millgate.observe.refusals import Refusals
from millgate.observe.ring import Facts, Kept, Ring, facts_of, place_in_facts
from millgate.observe.tracing import Traces
from millgate.observe.traffic import HeardStream, Traffic

_MOST_STEPS: Final = 64
"""Done together: a tenth of a millisecond. From 16 to 128 cost the same. 512 cost a refusal and a request 7 to 9 % more
CPU (AMD EPYC, this constant changed by hand, under the load of `bench`). So many records no longer lie in the
processor's caches when they are packed."""
_WITHIN_S: Final = 0.1
_ATTEMPT: Final = place_in_facts("attempt")
_TENANT: Final = place_in_facts("tenant")
_LANE: Final = place_in_facts("lane")
_MODEL: Final = place_in_facts("model")
_WHOLE: Final = (Outcome.GOOD, Outcome.LATE)
# Compiled, a name from elsewhere is looked up each time it is used, and a constant is not.
_ADMIT: Final = Admit
_ARRIVED: Final = Arrived
_ENDED: Final = Ended
_FIRST_TOKEN: Final = FirstToken
_HELD_BACK: Final = HeldBack
_PROGRESS: Final = EngineProgress
_YIELD: Final = Yield

Defer = Callable[[float, Callable[[], None]], object]
"""Calls back after so many seconds, as an event loop's `call_later` does."""


class StepAccounting(StepObserver):
    """Observes a driver's steps; without a `log` none is written, and `first_lane` takes what names none.

    Everything kept is bounded by what is under way and by the parts' own bounds. An observer that looks at the core now
    and then is called from `on_beat`, with the core's time, about every tenth of a second in which anything happens.
    `on_failure` is told the engine of each attempt that its engine failed, and how.
    """

    def __init__(
        self,
        ring: Ring,
        traffic: Traffic,
        refusals: Refusals,
        log: AttemptLog | None = None,
        first_lane: str = "",
        defer: Defer | None = None,
        traces: Traces | None = None,
    ) -> None:
        self.first_lane = first_lane
        self._defer = defer
        self._awaits = False
        self.on_beat: list[Callable[[float], None]] = []
        self.on_failure: Callable[[str, FailureKind], None] | None = None
        self._ring = ring
        self._traffic = traffic
        self._refusals = refusals
        self._log = log
        self._traces = traces
        self._steps: list[Kept] = []
        self._until = 0.0
        self._arrivals: dict[int, Kept] = {}
        self._admits: dict[int, Admit] = {}
        self._given: dict[int, bytes] = {}
        self._given_upstream: dict[int, bytes] = {}
        self._heard: dict[int, HeardStream | None] = {}  # None once its client holds it back
        self._begun: list[int] = []
        self._traced: list[str] = []

    # ---- on the path

    def named(self, attempt: int, request_id: bytes | None) -> None:
        """Take note of the id that a client gave, None where it gave none; call it before the arrival is posted."""
        if request_id is None:
            return
        self._ring.name(attempt, request_id)
        if self._log is not None:
            self._given[attempt] = request_id

    def upstream_named(self, attempt: int, request_id: bytes) -> None:
        """Take note of the id that an engine gave its answer; call it before the end of the attempt is posted."""
        self._ring.name_upstream(attempt, request_id)
        if self._log is not None:
            self._given_upstream[attempt] = request_id

    def failed_because(self, attempt: int, detail: str) -> None:
        """Take note of why the connection to an attempt's engine failed."""
        self._ring.note_cause(attempt, detail)

    def begun(self, attempt: int, traceparent: bytes | None) -> None:
        """Take an attempt into the trace that its client names, or into one of its own; call it before the arrival is posted."""
        if self._traces is not None:
            self._traced.append(f"{attempt} {self._traces.begin(attempt, traceparent)}")

    def on_step(self, event: Event, decisions: tuple[Decision, ...], now: float) -> None:
        """Keep what was decided at core time `now`."""
        # By the type itself, here and below: `isinstance` takes twice as long to say no.
        if type(event) is _ARRIVED:
            self._steps.append((now, facts_of(event), decisions))
        else:
            if decisions:
                self._steps.append((now, None, decisions))
            if type(event) is _FIRST_TOKEN:
                self._begun.append(event[0])
                self._heard[event[0]] = HeardStream(now, now, 1)
            elif type(event) is _PROGRESS:
                self._hear(event, now)
            elif type(event) is _HELD_BACK and event[0] in self._heard:
                self._heard[event[0]] = (
                    None  # it comes as fast as its client reads: that says nothing of its engine
                )
        if now >= self._until:
            self._until = now + _WITHIN_S
            self._traffic.now = now
            self.settle()
            for look in self.on_beat:
                look(now)
        elif len(self._steps) >= _MOST_STEPS:
            self.settle()
        elif self._defer is not None and not self._awaits:
            self._awaits = True
            self._defer(_WITHIN_S, self._late)

    def _late(self) -> None:
        """Do the books of what no later step has brought in."""
        self._awaits = False
        self.settle()

    # ---- in the books

    def settle(self) -> None:
        """Do the books of every step so far; every reader calls it first."""
        steps, self._steps, traced = self._steps, [], ""
        if steps and self._traced:
            traced, self._traced = "\n".join(self._traced), []
        self._ring.extend(steps, traced)
        self._enter(steps)
        if self._begun:
            self._forget_strangers()
        if self._log is not None:
            self._log.hand_over()
        if self._traces is not None:
            self._traces.hand_over()

    def _forget_strangers(self) -> None:
        """Drop what was heard of attempts that were over by then: a last event may come after a hang-up."""
        for attempt in self._begun:
            if attempt not in self._arrivals:
                self._heard.pop(attempt, None)
        self._begun = []

    def _enter(self, steps: Sequence[Kept]) -> None:
        for step in steps:
            now, facts, decisions = step
            if facts is not None:
                self._arrivals[facts[_ATTEMPT]] = step
                self._traffic.arrived(facts[_TENANT], now)
            for decision in decisions:
                if type(decision) is _ADMIT:
                    self._admitted(decision, facts, now)
                elif type(decision) is _ENDED:
                    self._ended(decision, now)
                elif type(decision) is _YIELD:
                    self._refused(decision, now)

    def _admitted(self, decision: Admit, facts: Facts | None, now: float) -> None:
        """Note an admission; one that came with its own arrival, whose `facts` these are, is kept there."""
        number = number_of(decision)
        later = self._log is not None and (facts is None or facts[_ATTEMPT] != number)
        told = bool(decision.window_s) or decision.due_at is not None or decision.reshaped is not None
        if not (later or told):
            return
        arrival = self._arrivals.get(number)
        if arrival is None:
            return
        if later:
            self._admits[number] = decision
        if told:
            self._traffic.admitted(self._lane_of(_facts(arrival), decision), decision, now)

    def _refused(self, decision: Yield, now: float) -> None:
        """Close the books on a refusal; where it was queued before, its end comes next and finds them closed."""
        self._refusals.note(decision, now)
        arrival = self._arrivals.pop(number_of(decision), None)
        if arrival is None:
            return
        facts = _facts(arrival)
        hint_s = decision.retry_after_s if decision.retry else None
        self._traffic.refused(facts[_TENANT], self._lane_of(facts, decision), hint_s)
        trace = None if self._traces is None else self._traces.end(arrival[0], now, facts, decision)
        self._close(now, arrival, decision, trace)

    def _lane_of(self, facts: Facts, decision: Admit | Yield) -> str:
        """Return the lane of an attempt: that of its class, or that which it named, or the first."""
        lane: str = facts[_LANE] or self.first_lane
        return lane if decision.classed is None else decision.classed.lane

    def _ended(self, decision: Ended, now: float) -> None:
        number = number_of(decision)
        arrival = self._arrivals.pop(number, None)
        if arrival is None:
            return
        facts = _facts(arrival)
        if decision.engine is not None:
            if isinstance(decision.cause, FailureKind) and self.on_failure is not None:
                self.on_failure(decision.engine, decision.cause)
            held_back = number in self._heard and self._heard[number] is None
            self._traffic.ended(facts[_TENANT], facts[_MODEL], decision, now, held_back=held_back)
        if self._heard:
            self._note_rest(decision, now)
        trace = None if self._traces is None else self._traces.end(arrival[0], now, facts, decision)
        self._close(now, arrival, decision, trace)

    def _close(self, now: float, arrival: Kept, final: Ended | Yield, trace: str | None) -> None:
        """Write the line of an attempt that is over; who is refused may have been with an engine that failed it, and have a name from there."""
        if self._log is not None:
            number = number_of(final)
            upstream_id = self._given_upstream.pop(number, None) if self._given_upstream else None
            given = self._given.pop(number, None) if self._given else None
            self._log.add(
                now, _facts(arrival), self._admit_of(number, arrival), final, given, upstream_id, trace
            )

    def _note_rest(self, decision: Ended, now: float) -> None:
        """Count the tokens since the last look; only a whole answer says how many they are."""
        heard = self._heard.pop(decision.attempt, None) if self._heard else None
        engine = decision.engine
        if heard is None or engine is None or decision.outcome not in _WHOLE:
            return
        self._traffic.decoded_whole(engine, heard, decision.output_tokens, now)

    def _admit_of(self, number: Any, arrival: Kept) -> Admit | None:
        """Return the last admission of an attempt: its own, or the one that it arrived with."""
        later = self._admits.pop(number, None) if self._admits else None
        if later is not None:
            return later
        for decision in arrival[2]:
            if type(decision) is _ADMIT and decision[0] == number:
                return decision
        return None

    def _hear(self, event: EngineProgress, now: float) -> None:
        """Note how far streams have come, and what that says of the time between their tokens."""
        for attempt, events, _, _ in event.streams:
            heard = self._heard.get(attempt)
            if heard is not None and events > heard.events:
                self._traffic.decoded(event.engine, now, now - heard.at, events - heard.events)
                self._heard[attempt] = HeardStream(heard.first_at, now, events)


def _facts(arrival: Kept) -> Facts:
    """Return what was asked in a step that is known to be an arrival."""
    facts = arrival[1]
    assert facts is not None
    return facts

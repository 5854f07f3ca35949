"""Assess: what would be decided about an arrival now, and from which numbers. Reads only.

The steps are those of design section 4, in its order: size it, lane it, is it a retry, date it, will it make it,
permit or hold or yield. The plan carries a draft record that nobody has registered; `commit` does, `explain`
throws it away.
"""

from collections.abc import Sequence
from typing import NamedTuple

from headgate.core.decisions import Admit, Hold, Leg, Yield
from headgate.core.events import Arrived
from headgate.core.governor.knowledge import Knowledge
from headgate.core.governor.promises import DRAINING_HINT_S, hint_s, no_engine_hint_s
from headgate.core.governor.records import Attempt, Engine
from headgate.core.lanes import choose_lane
from headgate.core.tickets import DUE_HOLD_S, Entry
from headgate.core.words import DeadlineFrom, Reason

# No queue holds more than this, whatever its predicted wait (INV-5): at 10,000 attempts even a thousand
# departures a second mean ten seconds.
QUEUE_COUNT_CEILING = 10_000
# A whole answer may take this many times its expected decoding before its engine is given up (design section 6).
_ANSWER_PATIENCE = 2.0


class Plan(NamedTuple):
    """A decision not yet taken: the draft record, the entry that it continues, the engine that would take it."""

    draft: Attempt
    entry: Entry | None
    engine: Engine | None
    decision: Admit | Hold | Yield
    expected_wait_s: float


def assess(knowledge: Knowledge, arrival: Arrived, now: float) -> Plan:
    """Return what `handle(Arrived)` would decide at this time; changes nothing."""
    lane = choose_lane(knowledge.open_lanes, arrival.lane, knowledge.first_lane)
    draft = Attempt(arrival, lane, now, knowledge.arrivals)
    _size(knowledge, draft)
    entry = _recognise(knowledge, draft, now)
    _date(draft)
    return _judge(knowledge, draft, entry, now)


def _size(knowledge: Knowledge, draft: Attempt) -> None:
    arrival = draft.arrival
    expected, reserved = knowledge.learned_output.estimate(arrival.model, arrival.max_tokens)
    draft.prompt_tokens = prompt = knowledge.prompt_bytes.tokens(arrival.model, arrival.prompt_bytes)
    draft.output_tokens = arrival.answers * expected
    draft.kv_tokens = prompt + arrival.answers * reserved


def _recognise(knowledge: Knowledge, draft: Attempt, now: float) -> Entry | None:
    """Find the entry that this arrival continues, and give the draft its `first_seen` back."""
    arrival = draft.arrival
    entry = None
    if arrival.fingerprint is not None and knowledge.places.knows(arrival.tenant):
        draft.fingerprint = arrival.fingerprint()
        entry = knowledge.places.match(arrival.tenant, draft.fingerprint, now, arrival.retry_count)
    if entry is not None:
        draft.recognised = True
        draft.first_seen = entry.first_seen
        draft.arrival_number = entry.number
    if arrival.first_seen is not None:
        draft.recognised = True
        draft.first_seen = min(draft.first_seen, arrival.first_seen)
    return entry


def _date(draft: Attempt) -> None:
    settings = draft.lane.settings
    from_first = settings.deadline_from is DeadlineFrom.FIRST_ATTEMPT
    origin = draft.first_seen if from_first else draft.arrived_at
    draft.lane_deadline = draft.deadline = origin + settings.deadline_s
    allowed_s = draft.arrival.time_allowed_s
    if allowed_s is not None:
        draft.deadline = min(draft.deadline, draft.arrived_at + allowed_s)


def _judge(knowledge: Knowledge, draft: Attempt, entry: Entry | None, now: float) -> Plan:
    if knowledge.draining:
        return _refused(knowledge, draft, entry, now, Reason.DRAINING)
    engines = knowledge.engines_for(draft.arrival.model)
    if not engines:
        return _refused(knowledge, draft, entry, now, Reason.NO_ENGINE, bound=1.0)
    if not fit_somewhere(engines, draft.prompt_tokens):
        return _refused(
            knowledge, draft, entry, now, Reason.TOO_LARGE, draft.prompt_tokens, largest_prompt(engines)
        )
    ahead = knowledge.ahead_of(draft)
    roomy = knowledge.roomy_engine(draft, engines, now) if ahead == 0 else None
    if roomy is not None:
        engine, ttft_s = roomy
        if now + ttft_s > draft.deadline:
            return _refused(knowledge, draft, entry, now, Reason.TOO_LATE, ttft_s, draft.deadline - now)
        return Plan(draft, entry, engine, admission(draft, engine, ttft_s, now), 0.0)
    if (full := _over_bounds(knowledge, draft, entry, now)) is not None:
        return _refused(knowledge, draft, entry, now, *full)
    return _judge_wait(knowledge, draft, entry, now, ahead + 1, engines)


def _judge_wait(
    knowledge: Knowledge,
    draft: Attempt,
    entry: Entry | None,
    now: float,
    place: int,
    engines: Sequence[Engine],
) -> Plan:
    """Hold it at this place if it will make it from there."""
    wait_s = knowledge.openings.wait_s(place, now)
    upper_s = wait_s + knowledge.openings.upper_s(place)
    ttft_s = min([engine.expected_ttft_s(draft.prompt_tokens) for engine in engines])
    if now + upper_s + ttft_s > draft.deadline:
        left_s = draft.deadline - now
        return _refused(knowledge, draft, entry, now, Reason.TOO_LATE, upper_s + ttft_s, left_s, wait_s)
    if draft.hold_until is not None and not _is_due(entry, now) and now + upper_s > draft.hold_until:
        left_s = draft.hold_until - now
        return _refused(knowledge, draft, entry, now, Reason.SATURATED, upper_s, left_s, wait_s)
    return Plan(draft, entry, None, Hold(draft.attempt, place, wait_s), wait_s)


def _refused(
    knowledge: Knowledge,
    draft: Attempt,
    entry: Entry | None,
    now: float,
    reason: Reason,
    value: float = 0.0,
    bound: float = 0.0,
    wait_s: float = 0.0,
) -> Plan:
    return Plan(draft, entry, None, refusal(knowledge, draft, reason, now, value, bound), wait_s)


def fit_somewhere(engines: Sequence[Engine], prompt_tokens: int) -> bool:
    """Return whether one of these engines could ever run a prompt of this size."""
    for engine in engines:  # noqa: SIM110 - a generator would cost every arrival 0.3 us
        if engine.gate.fits(prompt_tokens):
            return True
    return False


def largest_prompt(engines: Sequence[Engine]) -> int:
    """Return the tokens that a prompt must stay below: the largest KV limit of these engines."""
    return max(engine.gate.kv_limit or 0 for engine in engines)


def _over_bounds(
    knowledge: Knowledge, draft: Attempt, entry: Entry | None, now: float
) -> tuple[Reason, float, float] | None:
    """Return the bound of the lane's queue that this draft would break, with its numbers; set how long it may wait."""
    lane = draft.lane
    settings = lane.settings
    allowed_s = draft.arrival.max_wait_s
    if allowed_s is None or (settings.max_wait_s is not None and settings.max_wait_s < allowed_s):
        allowed_s = settings.max_wait_s
    if allowed_s is not None:
        draft.hold_until = now + allowed_s
    if settings.max_queue == 0 or draft.hold_until == now:
        if not _is_due(entry, now):
            return Reason.SATURATED, knowledge.running(), knowledge.stream_limit()
        draft.hold_until = now + DUE_HOLD_S
    count = len(lane.order)
    if count >= (bound := min(settings.max_queue or QUEUE_COUNT_CEILING, QUEUE_COUNT_CEILING)):
        return Reason.QUEUE_FULL, count, bound
    tokens = lane.order.tokens + draft.prompt_tokens + draft.output_tokens
    if settings.max_queue_tokens is not None and tokens > settings.max_queue_tokens:
        return Reason.QUEUE_FULL, tokens, settings.max_queue_tokens
    held_bytes = lane.order.body_bytes + draft.body_bytes
    if held_bytes > settings.max_queue_bytes:
        return Reason.QUEUE_FULL, held_bytes, settings.max_queue_bytes
    return None


def _is_due(entry: Entry | None, now: float) -> bool:
    return entry is not None and entry.is_due(now)


def admission(draft: Attempt, engine: Engine, ttft_s: float, now: float) -> Admit:
    """Return the decision to run this attempt on this engine now, with this predicted time to first token."""
    kv_tokens, prefill_tokens = engine.gate.clip(draft.kv_tokens, draft.prompt_tokens)
    first_event_by = draft.deadline + ttft_s
    if not draft.arrival.stream:
        output_tokens = draft.kv_tokens - draft.prompt_tokens
        first_event_by += _ANSWER_PATIENCE * output_tokens * engine.service.tpot_s(engine.limit)
        if draft.arrival.time_allowed_s is not None:
            first_event_by = min(first_event_by, draft.arrived_at + draft.arrival.time_allowed_s)
    leg = Leg(engine.settings.name, 1, kv_tokens, prefill_tokens)
    return Admit(draft.attempt, (leg,), now - draft.arrived_at, ttft_s, first_event_by)


def refusal(
    knowledge: Knowledge, draft: Attempt, reason: Reason, now: float, value: float, bound: float
) -> Yield:
    """Return the decision to refuse this attempt, with a hint that is true."""
    if reason is Reason.TOO_LARGE:
        return Yield(draft.attempt, reason, 0.0, False, value, bound)
    if reason is Reason.DRAINING:
        return Yield(draft.attempt, reason, DRAINING_HINT_S, True)
    if reason is Reason.NO_ENGINE:
        return Yield(draft.attempt, reason, no_engine_hint_s(knowledge), True, value, bound)
    hint = hint_s(knowledge, draft, now)
    from_first = draft.lane.settings.deadline_from is DeadlineFrom.FIRST_ATTEMPT
    in_time = not from_first or now + hint <= draft.lane_deadline
    return Yield(draft.attempt, reason, hint, in_time, value, bound)

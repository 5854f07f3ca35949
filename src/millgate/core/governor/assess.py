"""Assess: what would be decided about an arrival now, and from which numbers. Reads only.

The steps are those of design section 4, in its order: size it, lane it, is it a retry, date it, will it make it,
permit or queue or yield. The plan carries a draft that is not registered; `commit` registers it, `explain`
throws it away.
"""

from typing import Final

from millgate.core.decisions import Admit, Queue, Reshaped, Yield
from millgate.core.events import Arrived
from millgate.core.fast_records import make_admit, make_leg
from millgate.core.governor.allowances import Shortfall
from millgate.core.governor.classes import Classes
from millgate.core.governor.forecast import forecast
from millgate.core.governor.knowledge import Knowledge
from millgate.core.governor.placement import is_in_time
from millgate.core.governor.refusal import in_line, refusal
from millgate.core.governor.streams import streams_of
from millgate.core.governor.turns import ahead_of, may_go
from millgate.core.lanes import choose_lane
from millgate.core.settings import MINUTE_S
from millgate.core.sizing.output_length import OutputLength
from millgate.core.state.attempt import Attempt
from millgate.core.state.engine import Engine
from millgate.core.state.lane import Lane
from millgate.core.state.totals import Totals
from millgate.core.tickets import ReturnRecord
from millgate.core.words import DeadlineFrom, Reason

# So many answers teach how long a whole one takes; before that no request is refused for it.
_TRUSTED_ANSWERS: Final = 10
# Refusals for want of room: a shorter request, or one that may wait longer, may still go.
_UNDER_PRESSURE: Final = frozenset((Reason.SATURATED, Reason.QUEUE_FULL, Reason.TOO_LATE))
# SDKs try twice more by themselves: this is the last of them.
LAST_RETRY: Final = 2
# A whole answer may take this many times what the longest that may come takes at the learned pace, before it is given
# up; before the pace has been learned, so many times what is believed: a CPU is twenty times as slow as a GPU.
_ANSWER_PATIENCE: Final = 4.0
_STRANGERS_PATIENCE: Final = 20.0


class Plan:
    """A decision not yet taken: the draft record, the record that it continues, the engine that would take it."""

    __slots__ = ("decision", "draft", "engine", "expected_wait_s", "record")

    def __init__(
        self,
        draft: Attempt,
        record: ReturnRecord | None,
        engine: Engine | None,
        decision: Admit | Queue | Yield,
        expected_wait_s: float,
    ) -> None:
        self.draft = draft
        self.record = record
        self.engine = engine
        self.decision = decision
        self.expected_wait_s = expected_wait_s


def assess(knowledge: Knowledge, arrival: Arrived, now: float) -> Plan:
    """Return what `handle(Arrived)` would decide at this time; changes nothing."""
    plan = _assess_as_it_is(knowledge, arrival, now)
    decision, reshaped = plan.decision, None
    if isinstance(decision, Yield) and decision.reason in _UNDER_PRESSURE:
        reshaped = _reshape(knowledge, plan, now)
    return _observed(plan, reshaped, knowledge.hard_cap, now) if knowledge.observe else reshaped or plan


def _reshape(knowledge: Knowledge, refused: Plan, now: float) -> Plan | None:
    """Return how it could run all the same: shorter, or in the lane that its own demotes to; None if it could not."""
    arrival, settings = refused.draft.arrival, refused.draft.lane.settings
    most, demote = settings.clip_tokens, settings.demote
    if most is not None and arrival.may_clip and (arrival.max_tokens is None or arrival.max_tokens > most):
        arrival = arrival._replace(max_tokens=most)
        plan = _assess_as_it_is(knowledge, arrival, now)
        if not isinstance(plan.decision, Yield):
            return _announced(plan, Reshaped(None, most))
    if demote is None:
        return None
    plan = _assess_as_it_is(knowledge, arrival._replace(lane=demote), now)
    clipped = most if arrival is not refused.draft.arrival else None
    return None if isinstance(plan.decision, Yield) else _announced(plan, Reshaped(demote, clipped))


def _announced(plan: Plan, reshaped: Reshaped) -> Plan:
    plan.draft.runs_as(reshaped)
    if isinstance(plan.decision, Admit):
        plan.decision = plan.decision._replace(reshaped=reshaped)
    return plan


def _assess_as_it_is(knowledge: Knowledge, arrival: Arrived, now: float) -> Plan:
    classes, lengths = knowledge.classes, knowledge.output_length
    lane = choose_lane(knowledge.open_lanes, arrival.lane, classes.first)
    routes, engine = knowledge.routes, arrival.engine
    route = routes.of(arrival.model) if engine is None else routes.pinned(engine, arrival.model)
    weight = knowledge.allowances.weight(arrival.tenant)
    draft = Attempt(arrival, lane, route, weight, now, knowledge.totals.arrivals)
    prompt_tokens = knowledge.prompt_sizes.tokens(
        arrival.model, arrival.prompt_bytes, arrival.fixed_tokens, arrival.prompt_shape
    )
    _size(lengths, draft, prompt_tokens)
    if arrival.lane is None:
        classes.classify(draft)
    record = _recognise(classes, draft, now)
    if draft.classed is not None:
        _size(lengths, draft, prompt_tokens)
    _date(knowledge.totals, draft)
    return _judge(knowledge, draft, record, now)


def _observed(plan: Plan, reshaped: Plan | None, hard_cap: bool, now: float) -> Plan:
    """Let it run all the same, and say what a protecting gate would have refused it for; None where it would hold it.

    It runs as it came, also where a protecting gate would have `reshaped` it. Only what could not run at all is refused:
    without an engine, and in a drain.
    """
    draft, decision = plan.draft, plan.decision
    would = decision.reason if isinstance(decision, Yield) and reshaped is None else None
    if isinstance(decision, Admit) or would in {Reason.NO_ENGINE, Reason.DRAINING}:
        return plan
    if hard_cap and all(engine.gate.streams >= engine.limit for engine in draft.route.up):
        return reshaped or plan
    plan.engine = engine = min(draft.route.up, key=lambda each: each.gate.streams / each.limit)
    admit = admission(draft, engine, engine.expected_ttft_s(draft.prompt_tokens, now), now)
    plan.decision = admit._replace(would=would)
    return plan


def _size(output_length: OutputLength, draft: Attempt, prompt_tokens: int) -> None:
    arrival = draft.arrival
    expected, reserved = output_length.estimate(
        arrival.model,
        arrival.tenant,
        draft.lane.settings.name,
        arrival.max_tokens,
        prompt_tokens,
        arrival.min_tokens,
    )
    draft.sized(prompt_tokens, arrival.answers * expected, prompt_tokens + arrival.answers * reserved)


def _recognise(classes: Classes, draft: Attempt, now: float) -> ReturnRecord | None:
    """Find the record that this arrival continues; give the draft its `first_seen` back, and the lane that its size chose."""
    arrival = draft.arrival
    record = None
    appointments = draft.route.pool.appointments
    if arrival.fingerprint is not None and appointments.knows(arrival.tenant):
        record = appointments.match(arrival.tenant, draft.body(), now, arrival.retry_count)
    if record is not None:
        if arrival.lane is None:
            classes.keep(draft, record.lane)
        draft.continues(record, now)
    if arrival.first_seen is not None:
        draft.proves_age(arrival.first_seen, record, now)
    return record


def is_agreed(draft: Attempt, record: ReturnRecord | None, now: float) -> bool:
    """Return whether it is back when it was told to come, or cannot help coming sooner.

    Or whether it may be no return at all: of several that are away with one body, as all of a load test's are, nothing
    tells a return from one more first attempt, unless its client labels it.
    """
    arrival = draft.arrival
    if record is not None and record.is_shared and not arrival.retry_count:
        return True
    if arrival.caps_sleep or (record is not None and record.is_agreed(now)):
        return True
    return draft.appointment is not None and draft.appointment.is_due(now)


def _date(totals: Totals, draft: Attempt) -> None:
    settings = draft.lane.settings
    from_first = settings.deadline_from is DeadlineFrom.FIRST_ATTEMPT
    origin = draft.first_seen if from_first else draft.arrived_at
    lane_deadline = deadline = origin + settings.deadline_s
    allowed_s = draft.arrival.time_allowed_s
    if allowed_s is not None:
        if not draft.arrival.stream and totals.answers >= _TRUSTED_ANSWERS:
            # The client waits so long for the whole answer: what is decoded after the first token counts too.
            paces = [engine.service.tpot_s(1) for engine in draft.route.up]
            allowed_s -= draft.output_tokens / draft.arrival.answers * min(paces, default=0.0)
        deadline = min(deadline, draft.arrived_at + max(0.0, allowed_s))
    draft.dated(lane_deadline, deadline)


def _judge(knowledge: Knowledge, draft: Attempt, record: ReturnRecord | None, now: float) -> Plan:
    if knowledge.draining:
        return _refused(knowledge.totals, draft, record, now, Reason.DRAINING)
    engines = draft.route.up
    if not engines or all_down(engines, now):
        return _refused(knowledge.totals, draft, record, now, Reason.NO_ENGINE, bound=1.0)
    if not fit_somewhere(engines, draft):
        return _too_large(knowledge.totals, draft, record, now)
    agreed = is_agreed(draft, record, now)
    short = knowledge.allowances.shortfall(draft, agreed, now)
    if short is not None:
        return _short(knowledge.totals, draft, record, now, short)
    price(draft)
    _let_promised_go_first(draft, now)
    ahead = ahead_of(draft, now)
    roomy = knowledge.roomy_engine(draft, engines, now) if may_go(draft, ahead, now) else None
    if roomy is not None:
        engine, ttft_s = roomy
        if not is_in_time(engine, draft, ttft_s, now):
            return _refused(
                knowledge.totals, draft, record, now, Reason.TOO_LATE, ttft_s, draft.deadline - now
            )
        return Plan(draft, record, engine, admission(draft, engine, ttft_s, now), 0.0)
    beyond = _beyond_accounts(draft)
    if beyond is not None:
        return _refused(knowledge.totals, draft, record, now, Reason.TOO_LARGE, beyond[0], beyond[1])
    full = _over_bounds(knowledge, draft, record, now)
    if full is not None:
        return _refused(knowledge.totals, draft, record, now, *full)
    return _judge_wait(knowledge, draft, record, now, ahead + 1)


def _judge_wait(
    knowledge: Knowledge,
    draft: Attempt,
    record: ReturnRecord | None,
    now: float,
    place: int,
) -> Plan:
    """Queue it at this place if it will make it from there."""
    wait_s, upper_s, ttft_s = forecast(draft, place, now)
    due_hold_s = _due_hold_s(draft, record, now)
    if now + upper_s + ttft_s > draft.deadline and not _keeps_its_promise(draft, due_hold_s, ttft_s, now):
        left_s = draft.deadline - now
        return _refused(
            knowledge.totals, draft, record, now, Reason.TOO_LATE, upper_s + ttft_s, left_s, wait_s
        )
    if draft.queued_until is not None and not due_hold_s and now + upper_s > draft.queued_until:
        left_s = draft.queued_until - now
        refused = refusal(knowledge.totals, draft, Reason.SATURATED, now, upper_s, left_s)._replace(
            of_wait=True
        )
        return Plan(draft, record, None, refused, wait_s)
    return Plan(draft, record, None, Queue(draft.attempt, place, wait_s, draft.classed), wait_s)


def _refused(
    totals: Totals,
    draft: Attempt,
    record: ReturnRecord | None,
    now: float,
    reason: Reason,
    value: float = 0.0,
    bound: float = 0.0,
    wait_s: float = 0.0,
) -> Plan:
    return Plan(draft, record, None, refusal(totals, draft, reason, now, value, bound, wait_s), wait_s)


def _short(totals: Totals, draft: Attempt, record: ReturnRecord | None, now: float, short: Shortfall) -> Plan:
    """Refuse it for what its tenant lacks."""
    plan = _refused(totals, draft, record, now, short.reason, short.value, short.bound, short.wait_s)
    if short.behind is not None and isinstance(plan.decision, Yield):
        plan.decision = in_line(totals, plan.decision, short.behind)
        plan.expected_wait_s = max(short.wait_s, short.behind.wait_s)
    return plan


def price(draft: Attempt) -> None:
    """Foresee what it takes of an engine, as the orders rank it, and as what the early warning counts it.

    On the first engine that may, when it is full.
    """
    engine = draft.route.up[0]
    service, streams = engine.service, engine.drain.full_streams
    prompt_tokens, output_tokens = draft.prompt_tokens, draft.output_tokens
    work_s = service.engine_s(prompt_tokens, output_tokens, streams)
    draft.priced(work_s, engine.permit_s(prompt_tokens, output_tokens))


def _let_promised_go_first(draft: Attempt, now: float) -> None:
    """Rank a client that returns on time first; its appointment already accounted for shorter work."""
    if draft.appointment is not None and draft.appointment.is_honoured(now):
        draft.goes_first()


def _too_large(totals: Totals, draft: Attempt, record: ReturnRecord | None, now: float) -> Plan:
    """Refuse for good what no engine can ever run, and say of what it has too many: streams or prompt tokens."""
    engines = draft.route.up
    most = max(engine.settings.max_inflight for engine in engines)
    if min(streams_of(engine.gate, draft.arrival) for engine in engines) <= most:
        bound = largest_prompt(engines)
        return _refused(totals, draft, record, now, Reason.TOO_LARGE, draft.prompt_tokens, bound)
    plan = _refused(totals, draft, record, now, Reason.TOO_LARGE, draft.arrival.answers, most)
    assert isinstance(plan.decision, Yield)
    plan.decision = plan.decision._replace(of_streams=True)
    return plan


def fit_somewhere(engines: tuple[Engine, ...], draft: Attempt) -> bool:
    """Return whether one of these engines could ever run this attempt."""
    for engine in engines:
        if engine.gate.fits(draft.prompt_tokens, streams_of(engine.gate, draft.arrival)):
            return True
    return False


def all_down(engines: tuple[Engine, ...], now: float) -> bool:
    """Return whether each of these is a provider that cannot be reached, so that waiting for them is no use."""
    return all(engine.provider is not None and engine.provider.is_down(now) for engine in engines)


def _beyond_accounts(draft: Attempt) -> tuple[float, float] | None:
    """Return what it needs and the most that there ever is, where none of its engines' accounts can ever carry it."""
    beyond: tuple[float, float] | None = None
    for engine in draft.route.up:
        if engine.provider is None or (beyond := engine.provider.beyond(draft.sizes())) is None:
            return None
    return beyond


def largest_prompt(engines: tuple[Engine, ...]) -> int:
    """Return the tokens that a prompt must stay below: the largest KV limit of these engines."""
    return max(engine.gate.kv_limit or 0 for engine in engines)


def _over_bounds(
    knowledge: Knowledge, draft: Attempt, record: ReturnRecord | None, now: float
) -> tuple[Reason, float, float] | None:
    """Return the bound of the lane's queue that this draft would break, with its numbers; set how long it may wait.

    `max_queue` bounds requests without a promise. A full queue still takes a client that is due, in the place of one of
    them or beyond the count, for as long as its promise counts as kept; so does one of `max_queue: 0`. A full queue also
    takes the last retry of a request that was refused before.
    """
    lane = draft.lane
    settings = lane.settings
    is_full = settings.max_queue is not None and lane.queued >= settings.max_queue
    if settings.max_queue and draft.recognised and (draft.arrival.retry_count or 0) >= LAST_RETRY:
        is_full = False
    allowed_s = 0.0 if is_full else most_wait_s(draft)
    if allowed_s is not None:
        allowed_s = max(allowed_s, _due_hold_s(draft, record, now))
        draft.may_wait_until(now + allowed_s)
        if allowed_s == 0.0:
            if is_full and settings.max_queue:
                return Reason.QUEUE_FULL, lane.queued, settings.max_queue
            return Reason.SATURATED, knowledge.running(), knowledge.stream_limit()
    if (
        knowledge.queued_count >= knowledge.max_queued
        and less_important(knowledge.lanes, settings.band) is None
    ):
        return Reason.QUEUE_FULL, knowledge.queued_count, knowledge.max_queued
    tokens = lane.queued_tokens + draft.prompt_tokens + draft.output_tokens
    if settings.max_queue_tokens is not None and tokens > settings.max_queue_tokens:
        return Reason.QUEUE_FULL, tokens, settings.max_queue_tokens
    queued_bytes = lane.queued_bytes + draft.body_bytes
    if queued_bytes > settings.max_queue_bytes:
        return Reason.QUEUE_FULL, queued_bytes, settings.max_queue_bytes
    return None


def most_wait_s(draft: Attempt) -> float | None:
    """Return how long its lane and its client let it wait; None where neither says."""
    asked_s, most_s = draft.arrival.max_wait_s, draft.lane.settings.max_wait_s
    if asked_s is None or (most_s is not None and most_s < asked_s):
        return most_s
    return asked_s


def _due_hold_s(draft: Attempt, record: ReturnRecord | None, now: float) -> float:
    """Return how long a client that is due is queued in any case: until its promise no longer counts as kept; else 0.

    A lane may say less, or nothing at all.
    """
    if record is None or record.appointment is None or not record.is_due(now):
        return 0.0
    hold_s, most_s = record.appointment.hold_s, draft.lane.settings.hold_due_s
    return hold_s if most_s is None else min(hold_s, most_s)


def _keeps_its_promise(draft: Attempt, due_hold_s: float, ttft_s: float, now: float) -> bool:
    """Return whether it is queued though it may be too late: what was promised is not broken for a forecast.

    No longer than its promise counts as kept, and not where even a permit now would be too late.
    """
    if not due_hold_s or now + ttft_s > draft.deadline:
        return False
    queued_until = draft.queued_until
    hold_until = now + due_hold_s
    draft.may_wait_until(hold_until if queued_until is None else min(queued_until, hold_until))
    return True


def less_important(lanes: dict[str, Lane], band: int) -> Lane | None:
    """Return the lane whose queued work makes room for this band's where everything is full; None where none has to."""
    queued = [lane for lane in lanes.values() if lane.queued and lane.settings.band > band]
    return max(queued, key=lambda lane: lane.settings.band, default=None)


def _longest_s(draft: Attempt, engine: Engine, ttft_s: float) -> float:
    """Return how long the longest answer that may come can take while its engine lives.

    That is as long as its client lets it be, or where the client does not say as the engine's memory and settings do:
    what is foreseen or reserved bounds no answer.
    """
    tokens = draft.arrival.max_tokens
    if tokens is None:
        tokens = engine.settings.longest_answer
        if engine.gate.kv_limit is not None:
            tokens = min(tokens, engine.gate.kv_limit)
    service = engine.service
    patience = _ANSWER_PATIENCE if service.answers >= _TRUSTED_ANSWERS else _STRANGERS_PATIENCE
    return patience * (ttft_s + tokens * service.tpot_s(engine.limit))


def admission(draft: Attempt, engine: Engine, ttft_s: float, now: float) -> Admit:
    """Return the decision to run this attempt on this engine now, with this predicted time to first token."""
    kv_tokens, prefill_tokens = engine.gate.clip(draft.kv_tokens, draft.prompt_tokens)
    first_event_by = draft.deadline + ttft_s
    if not draft.arrival.stream:
        # It shows nothing until it is whole, and is not given up within a minute: for as long a stream may be silent, too.
        first_event_by = max(first_event_by, now + MINUTE_S) + _longest_s(draft, engine, ttft_s)
        if draft.arrival.time_allowed_s is not None:
            first_event_by = min(first_event_by, draft.arrived_at + draft.arrival.time_allowed_s)
    streams = streams_of(engine.gate, draft.arrival)
    return make_admit(
        draft.attempt,
        make_leg(engine.settings.name, streams, kv_tokens, prefill_tokens),
        waited_s=now - draft.arrived_at,
        expected_ttft_s=ttft_s,
        first_event_by=first_event_by,
        reshaped=draft.reshaped,
        due_at=None if draft.appointment is None else draft.appointment.due_at,
        classed=draft.classed,
    )

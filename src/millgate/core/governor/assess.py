"""Assess: what would be decided about an arrival now, and from which numbers. Reads only.

The steps are those of design section 4, in its order: size it, lane it, is it a retry, date it, will it make it, permit or queue or yield.
The door, `commit.dispatch` and the second try (`failover`) ask the same rules: `unfit`, `placement.is_in_time`, `over_bounds`.
"""

from typing import Final

from millgate.core.decisions import Admit, Queue, Reshaped, Yield
from millgate.core.events import Arrived, PrefixMarks
from millgate.core.fast_records import make_admit, make_leg
from millgate.core.governor.allowances import Shortfall
from millgate.core.governor.knowledge import Knowledge
from millgate.core.governor.placement import Place, is_in_time, kept_out_by, may_run, roomy_engine, waits_for
from millgate.core.governor.promises import forecast, refusal, session_room_s, short_refusal
from millgate.core.governor.turns import ahead_of, lets_pass, may_go, may_pass
from millgate.core.routing.prefix_index import LEAST_PREFIX_TOKENS, Held, PrefixIndex
from millgate.core.routing.working_set import MOST_PASSED_OVER
from millgate.core.settings import MINUTE_S
from millgate.core.sizing import FEW_ANSWERS
from millgate.core.state.attempt import Age, Request
from millgate.core.state.engine import Engine
from millgate.core.state.lane import Lane, choose_lane, less_important
from millgate.core.state.pool import Route
from millgate.core.tickets.appointment import ReturnRecord
from millgate.core.words import Counted, DeadlineFrom, Reason

# Refusals for want of room: a shorter request, or one that may wait longer, may still go.
_UNDER_PRESSURE: Final = frozenset((Reason.SATURATED, Reason.QUEUE_FULL, Reason.TOO_LATE))
# SDKs try twice more by themselves: this is the last of them.
LAST_RETRY: Final = 2
# A whole answer may take this many times what the longest that may come takes at the learned pace, before it is given
# up; before the pace has been learned, so many times what is believed: a CPU is twenty times as slow as a GPU.
_ANSWER_PATIENCE: Final = 4.0
_STRANGERS_PATIENCE: Final = 20.0


class Plan:
    """A decision not yet taken: about which request, on which engine if it is admitted, how long it waits if it is queued.

    A queued one `leaves_room` where it could go, and waits for a better engine.
    """

    def __init__(
        self,
        request: Request,
        decision: Admit | Queue | Yield,
        engine: Engine | None = None,
        expected_wait_s: float = 0.0,
        queued_until: float | None = None,
        *,
        leaves_room: bool = False,
    ) -> None:
        self.leaves_room: Final = leaves_room
        self.request: Final = request
        self.decision: Final = decision
        self.engine: Final = engine
        self.expected_wait_s: Final = expected_wait_s
        self.queued_until: Final = queued_until


def assess(knowledge: Knowledge, arrival: Arrived, now: float) -> Plan:
    """Return what `handle(Arrived)` would decide at this time; changes nothing."""
    plan = _as_it_is(knowledge, arrival, now)
    decision, reshaped = plan.decision, None
    if isinstance(decision, Yield) and decision.reason in _UNDER_PRESSURE:
        reshaped = _reshape(knowledge, plan.request, now)
    return _observed(knowledge, plan, reshaped, now) if knowledge.observe else reshaped or plan


def _reshape(knowledge: Knowledge, refused: Request, now: float) -> Plan | None:
    """Return how it could run all the same: shorter, or in the lane that its own demotes to, cut there only if it must be; else None."""
    arrival, most, demote = refused.arrival, refused.lane.settings.clip_tokens, refused.lane.settings.demote
    ways = [] if demote is None else [Reshaped(demote, None)]
    if most is not None and arrival.may_clip and (arrival.max_tokens is None or arrival.max_tokens > most):
        ways = [Reshaped(None, most), *ways, *[each._replace(max_tokens=most) for each in ways]]
    for way in ways:
        lane, tokens = way.lane or arrival.lane, way.max_tokens or arrival.max_tokens
        plan = _as_it_is(knowledge, arrival._replace(lane=lane, max_tokens=tokens), now, way)
        if not isinstance(plan.decision, Yield):
            return plan
    return None


def _as_it_is(
    knowledge: Knowledge,
    arrival: Arrived,
    now: float,
    reshaped: Reshaped | None = None,
    *,
    anew: bool = False,
) -> Plan:
    classes, classed = knowledge.classes, None
    lane = choose_lane(knowledge.open_lanes, arrival.lane, classes.first)
    route = knowledge.engines.routes.of_arrival(arrival, lane.settings)
    record, fingerprint = _recognise(route, arrival, now)
    prompt_tokens = knowledge.prompt_sizes.tokens(
        arrival.model, arrival.prompt_bytes, arrival.fixed_tokens, arrival.prompt_shape
    )
    marks = _marks(arrival, prompt_tokens)
    held = knowledge.engines.placement.held(marks, prompt_tokens)
    cached_tokens = max(held.values()) if held else 0
    told_tokens = knowledge.engines.prefixes.told_tokens(held) if held else 0
    sizes = sizes_of(knowledge, lane, arrival, prompt_tokens)
    unread_tokens = max(1, prompt_tokens - cached_tokens)
    if arrival.lane is None:
        lane, classed = classes.lane_of(arrival, route, (unread_tokens, sizes[1], sizes[2]), record)
    if classed is not None:
        route = knowledge.engines.routes.of_arrival(arrival, lane.settings)
        sizes = sizes_of(knowledge, lane, arrival, prompt_tokens)
    age = Age(arrival, lane.settings, record, knowledge.totals.arrivals, now)
    if anew:
        age.begins_anew(now)
    work_s, service_s = price(route, unread_tokens, sizes[1])
    request = Request(
        arrival,
        lane,
        route,
        knowledge.allowances.weight(arrival.tenant),
        now,
        age,
        sizes=(*sizes, told_tokens),
        marks=marks,
        cached_tokens=cached_tokens,
        deadlines=_deadlines(knowledge, lane, route, arrival, age, sizes[1], now),
        work_s=work_s,
        service_s=service_s,
        fingerprint=fingerprint,
        reshaped=reshaped,
        classed=classed,
    )
    plan = _judge(knowledge, request, held, now)
    decision = plan.decision
    if isinstance(decision, Yield) and decision.reason in _UNDER_PRESSURE and request.may_begin_anew:
        return _as_it_is(knowledge, arrival, now, reshaped, anew=True)
    return plan


def _observed(knowledge: Knowledge, plan: Plan, reshaped: Plan | None, now: float) -> Plan:
    """Let it run all the same, and say what a protecting gate would have refused it for; None where it would hold it.

    It runs as it came, also where a protecting gate would have `reshaped` it. What cannot run is refused: without an engine, in a drain.
    """
    request, decision = plan.request, plan.decision
    would = decision.reason if isinstance(decision, Yield) and reshaped is None else None
    if isinstance(decision, Admit) or would in {Reason.NO_ENGINE, Reason.DRAINING}:
        return plan
    if knowledge.hard_cap and all(engine.gate.streams >= engine.limit for engine in request.route.up):
        return reshaped or plan
    placement = knowledge.engines.placement
    up, able = request.route.up, waits_for(placement, request, now)
    up = tuple([each for each in up if each.number in able]) or up
    engine = min(up, key=lambda each: each.gate.streams / max(1, each.limit))
    own = placement.candidate(engine, request, {}, placement.prices.session_of(request), now)
    ttft_s = engine.expected_ttft_s(max(1, request.prompt_tokens - own.cached_tokens), now)
    readers = request.route.readers_of(engine) if engine.needs_reader else ()
    reader = min(readers, key=lambda each: each.gate.streams / max(1, each.limit), default=None)
    place = engine, ttft_s, 0.0, (own,) if request.marks else (), reader
    admit = admission_at(knowledge.engines.prefixes, request, place, now)
    return Plan(request, admit._replace(would=would), engine, plan.expected_wait_s)


def sizes_of(knowledge: Knowledge, lane: Lane, arrival: Arrived, prompt: int) -> tuple[int, int, int]:
    """Return its prompt tokens, the output tokens that are expected, and the tokens that are reserved, over all its answers."""
    expected, reserved = knowledge.output_length.estimate(
        arrival.model, arrival.tenant, lane.settings.name, arrival.max_tokens, prompt, arrival.min_tokens
    )
    return prompt, arrival.answers * expected, prompt + arrival.answers * reserved


def _marks(arrival: Arrived, prompt_tokens: int) -> PrefixMarks:
    """Return the marks of its prompt; none of one that is read at once wherever it goes."""
    if arrival.marks is None or prompt_tokens < LEAST_PREFIX_TOKENS:
        return ()
    marks = arrival.marks()
    return marks if marks and marks[-1][1] > 0 else ()


def _recognise(route: Route, arrival: Arrived, now: float) -> tuple[ReturnRecord | None, int | None]:
    """Return the record that this arrival continues, and its fingerprint if that was computed."""
    appointments = route.pool.appointments
    if arrival.fingerprint is None or not appointments.knows(arrival.tenant):
        return None, None
    fingerprint = arrival.fingerprint()
    return appointments.match(arrival.tenant, fingerprint, now, arrival.retry_count), fingerprint


def _deadlines(
    knowledge: Knowledge, lane: Lane, route: Route, arrival: Arrived, age: Age, output_tokens: int, now: float
) -> tuple[float, float]:
    """Return until when it is in time by its lane, and by its client too."""
    from_first = lane.settings.deadline_from is DeadlineFrom.FIRST_ATTEMPT
    deadline = (age.first_seen if from_first else now) + lane.settings.deadline_s
    allowed_s = arrival.time_allowed_s
    if allowed_s is None:
        return deadline, deadline
    if not arrival.stream and knowledge.totals.answers >= FEW_ANSWERS:
        # The client waits so long for the whole answer: what is decoded after the first token counts too, once a few answers
        # have taught how long that takes. Of a far longer one than any before to such requests nothing is known: a bound is no length.
        lengths, name = knowledge.output_length, lane.settings.name
        longest = lengths.longest(arrival.model, arrival.tenant, name, arrival.max_tokens)
        pace_s = min([engine.service.tpot_s(1) for engine in route.up], default=0.0)
        allowed_s -= pace_s * min(output_tokens / arrival.answers, max(arrival.min_tokens, longest))
    return deadline, min(deadline, now + max(0.0, allowed_s))


def price(route: Route, prompt_tokens: int, output_tokens: int) -> tuple[float, float]:
    """Foresee what it takes of the first engine that may, when that is full, and how long its streams are out; 0 without one."""
    if not route.up:
        return 0.0, 0.0
    engine = route.up[0]
    work_s = engine.service.engine_s(prompt_tokens, output_tokens, engine.drain.full_streams)
    return work_s, engine.permit_s(prompt_tokens, output_tokens)


def _judge(knowledge: Knowledge, request: Request, held: Held, now: float) -> Plan:
    if knowledge.draining:
        return _refused(knowledge, request, now, Reason.DRAINING)
    reason = unfit(request, now)
    if reason is Reason.TOO_LARGE:
        return _too_large(knowledge, request, now)
    if reason is not None:
        return _refused(knowledge, request, now, reason, bound=1.0)
    if knowledge.lease.is_closed:
        return _refused(knowledge, request, now, Reason.NO_LEASE)
    short = knowledge.allowances.shortfall(request, now)
    if short is not None:
        return _short(knowledge, request, now, short)
    ahead = ahead_of(request, now)
    roomy = _place(knowledge, request, held, ahead, now)
    if roomy is None:
        return _without_place(knowledge, request, held, now, ahead)
    engine, ttft_s, better_until, candidates, _ = roomy
    if better_until > now:
        waits = _without_room(knowledge, request, now, ahead)
        if isinstance(waits.decision, Queue):
            queued = waits.decision._replace(candidates=candidates, better_until=better_until)
            return Plan(request, queued, None, waits.expected_wait_s, waits.queued_until, leaves_room=True)
    if not is_in_time(engine, request, ttft_s, now):
        return _refused(knowledge, request, now, Reason.TOO_LATE, ttft_s, request.deadline - now)
    return Plan(request, admission_at(knowledge.engines.prefixes, request, roomy, now), engine)


def _place(knowledge: Knowledge, request: Request, held: Held, ahead: int, now: float) -> Place | None:
    """Return where it may start at once: it is its turn, or those that wait before it have no use of that place."""
    placement, attempts = knowledge.engines.placement, knowledge.attempts
    if may_go(request, ahead, now):
        return roomy_engine(placement, request, held, now)
    if attempts.has_left_room and may_pass(request):
        return roomy_engine(placement, request, held, now, attempts.kept)
    return None


def _without_place(knowledge: Knowledge, request: Request, held: Held, now: float, ahead: int) -> Plan:
    placement = knowledge.engines.placement
    if placement.is_kept_out(request, held, now):
        return _kept_out(knowledge, request, now, ahead)
    if placement.has_adapters and placement.adapter_turns.is_out(request):
        return _without_slot(knowledge, request, now, ahead)
    return _without_room(knowledge, request, now, ahead)


def _kept_out(knowledge: Knowledge, request: Request, now: float, ahead: int) -> Plan:
    """Every engine is full of live sessions: queue it where there will be room in its time, else refuse it until then."""
    working_sets = knowledge.engines.working_sets
    room_s = session_room_s(working_sets, request, ahead, now)
    until, allowed_s = request.latest_start(), _wait_allowed_s(request)
    would_wait = now + room_s <= until and ahead < MOST_PASSED_OVER
    until = until if allowed_s is None else min(until, now + allowed_s)
    full = _full(knowledge, request)
    if full is not None and full[0] is Reason.QUEUE_FULL and would_wait:
        return _refused(knowledge, request, now, full[0], full[1], full[2], room_s, room_s)
    if full is None and would_wait and now + room_s <= until:
        queued = Queue(request.attempt, ahead + 1, room_s, request.classed)
        return Plan(request, queued, None, room_s, until, leaves_room=True)
    meter = kept_out_by(request, now)
    # Where turns that run fill the memory, it is that and no session.
    if meter is None or meter[0] is not Counted.MEMORY or room_s >= working_sets.next_room_s(now):
        meter = Counted.SESSIONS, room_s, until - now
    return _refused(knowledge, request, now, Reason.SATURATED, meter[1], meter[2], room_s, room_s, meter[0])


def _without_slot(knowledge: Knowledge, request: Request, now: float, ahead: int) -> Plan:
    """Every slot for adapters is in use by others: queue it where one is expected in its time, else refuse it until then."""
    slot_s = knowledge.engines.placement.adapter_turns.wait_s(request, now)
    plan = _without_room(knowledge, request, now, ahead, slot_s)
    decision = plan.decision
    if isinstance(decision, Yield):
        if decision.reason is Reason.SATURATED and decision.counted is None:  # it may not wait at all
            decision = decision._replace(value=slot_s, bound=0.0)
        if decision.reason in {Reason.SATURATED, Reason.TOO_LATE}:
            decision = decision._replace(counted=Counted.ADAPTERS)
        return Plan(request, decision, expected_wait_s=slot_s)
    return Plan(request, decision, None, plan.expected_wait_s, plan.queued_until, leaves_room=True)


def _without_room(
    knowledge: Knowledge, request: Request, now: float, ahead: int, slot_s: float = 0.0
) -> Plan:
    """Queue it if it may wait and will make it; refuse it if not."""
    if (beyond := _beyond_accounts(request)) is not None:
        return _refused(knowledge, request, now, Reason.TOO_LARGE, beyond[0], beyond[1])
    allowed_s = _wait_allowed_s(request)
    full = _full(knowledge, request)
    if full is not None:
        reason, value, bound = full  # one by one: compiled code makes a list of what a star stands for
        meter = kept_out_by(request, now) if reason is Reason.SATURATED and not slot_s else None
        if meter is not None:
            return _refused(knowledge, request, now, reason, meter[1], meter[2], counted=meter[0])
        return _refused(knowledge, request, now, reason, value, bound, slot_s=slot_s)
    queued_until = None if allowed_s is None else now + allowed_s
    return _judge_wait(knowledge, request, now, ahead + 1, queued_until, slot_s)


def _judge_wait(
    knowledge: Knowledge, request: Request, now: float, place: int, queued_until: float | None, slot_s: float
) -> Plan:
    """Queue it at this place if it will make it from there; it waits no longer than `queued_until`, and `slot_s` for its adapter."""
    wait_s, upper_s, ttft_s = forecast(request, place, now, slot_s)
    hold_s, left_s = request.due_hold_s, request.deadline - now
    pace = Counted.PACE if request.queue.is_paced(request.unread_tokens, now) else None
    if upper_s + ttft_s > left_s:
        # What was promised is not broken for a forecast, unless even a permit now would be too late.
        if not hold_s or ttft_s > left_s:
            late = Reason.TOO_LATE
            return _refused(knowledge, request, now, late, upper_s + ttft_s, left_s, wait_s, slot_s, pace)
        queued_until = now + hold_s if queued_until is None else min(queued_until, now + hold_s)
    if queued_until is not None and not hold_s and now + upper_s > queued_until:
        full, most_s, wait = Reason.SATURATED, queued_until - now, Counted.WAIT
        return _refused(knowledge, request, now, full, upper_s, most_s, wait_s, slot_s, wait)
    queued = Queue(request.attempt, place, wait_s, request.classed, counted=pace)
    return Plan(request, queued, None, wait_s, queued_until)


def _refused(
    knowledge: Knowledge,
    request: Request,
    now: float,
    reason: Reason,
    value: float = 0.0,
    bound: float = 0.0,
    wait_s: float = 0.0,
    slot_s: float = 0.0,
    counted: Counted | None = None,
) -> Plan:
    decision = refusal(knowledge.totals, request, reason, now, value, bound, wait_s, slot_s)
    if counted is not None:
        decision = decision._replace(counted=counted)
    return Plan(request, decision, expected_wait_s=wait_s)


def _short(knowledge: Knowledge, request: Request, now: float, short: Shortfall) -> Plan:
    """Refuse it for what its tenant lacks, or hold it for a stream that is about to end."""
    if short.hold_s > 0.0 and lets_pass(request) and over_bounds(knowledge, request) is None:
        queued = Queue(request.attempt, ahead_of(request, now) + 1, short.ahead_s, request.classed)
        return Plan(request, queued, None, short.ahead_s, now + short.hold_s, leaves_room=True)
    return Plan(request, short_refusal(knowledge.totals, request, short, now), expected_wait_s=short.ahead_s)


def _too_large(knowledge: Knowledge, request: Request, now: float) -> Plan:
    """Refuse for good what no engine, or two, can ever run, and say of what it has too many: streams or prompt tokens."""
    ways, arrival = request.route.ways(), request.arrival
    most = max(min(each.settings.max_inflight for each in way) for way in ways)
    if min(each.gate.streams_of(arrival) for way in ways for each in way) <= most:
        # The largest KV limit, of engines that have a prompt together the smaller one.
        bound = max(
            min((each.gate.kv_limit for each in way if each.gate.kv_limit), default=0) for way in ways
        )
        return _refused(knowledge, request, now, Reason.TOO_LARGE, request.prompt_tokens, bound)
    decision = refusal(knowledge.totals, request, Reason.TOO_LARGE, now, arrival.answers, most)
    return Plan(request, decision._replace(counted=Counted.STREAMS))


def unfit(request: Request, now: float) -> Reason | None:
    """Return why waiting for its engines is no use: none is up that takes such a request, or none can ever run it; else None."""
    engines = request.route.up
    if not engines or all(engine.provider is not None and engine.provider.is_down(now) for engine in engines):
        return Reason.NO_ENGINE
    reason = Reason.TOO_LARGE
    for engine in engines:
        if engine.needs_reader and not request.arrival.bootstraps:
            reason = Reason.NO_ENGINE
        elif may_run(engine, request):
            return None
    return reason


def _beyond_accounts(request: Request) -> tuple[float, float] | None:
    """Return what it needs and the most that there ever is, where none of its engines' accounts can ever carry it."""
    beyond: tuple[float, float] | None = None
    for engine in request.route.up:
        if engine.provider is None or (beyond := engine.provider.account.beyond(request.sizes())) is None:
            return None
    return beyond


def _wait_allowed_s(request: Request) -> float | None:
    """Return how long it may be queued, 0 where it may not; None where nothing bounds the wait but its deadline.

    `max_queue` bounds requests without a promise. A full queue still takes a client that is due, in the place of one of
    them or beyond the count, for as long as its promise counts as kept; so does one of `max_queue: 0`. A full queue also
    takes the last retry of a request that was refused before.
    """
    max_queue = request.lane.settings.max_queue
    is_last = bool(max_queue) and request.recognised and (request.arrival.retry_count or 0) >= LAST_RETRY
    allowed_s = 0.0 if not is_last and request.lane.is_full else request.most_wait_s
    return None if allowed_s is None else max(allowed_s, request.due_hold_s)


def _full(knowledge: Knowledge, request: Request) -> tuple[Reason, float, float] | None:
    """Return why it may not be queued for as long as it may wait, with the numbers; None where it may."""
    lane, max_queue = request.lane, request.lane.settings.max_queue
    if _wait_allowed_s(request) != 0.0:
        return over_bounds(knowledge, request, displaces=True)
    if max_queue and lane.is_full:
        return Reason.QUEUE_FULL, lane.queued, max_queue
    return Reason.SATURATED, knowledge.engines.running(), knowledge.engines.stream_limit()


def over_bounds(
    knowledge: Knowledge, request: Request, *, displaces: bool = False
) -> tuple[Reason, float, float] | None:
    """Return the bound of memory that would be broken if this one were queued (INV-5), with its numbers; else None.

    One that `displaces` others may take the place of a request of a less important lane.
    """
    lane, settings = request.lane, request.lane.settings
    if knowledge.attempts.queued_count >= knowledge.max_queued and not (
        displaces and less_important(knowledge.lanes, settings.band)
    ):
        return Reason.QUEUE_FULL, knowledge.attempts.queued_count, knowledge.max_queued
    tokens = lane.queued_tokens + request.prompt_tokens + request.output_tokens
    if settings.max_queue_tokens is not None and tokens > settings.max_queue_tokens:
        return Reason.QUEUE_FULL, tokens, settings.max_queue_tokens
    queued_bytes = lane.queued_bytes + request.body_bytes
    if queued_bytes > settings.max_queue_bytes:
        return Reason.QUEUE_FULL, queued_bytes, settings.max_queue_bytes
    return None


def may_wait_again(knowledge: Knowledge, request: Request) -> bool:
    """Return whether a request that comes back from an engine may be queued: as a newcomer without a promise may."""
    is_shut = knowledge.draining or knowledge.lease.is_closed
    return not (is_shut or request.lane.is_full or over_bounds(knowledge, request))


def _longest_s(request: Request, engine: Engine, ttft_s: float) -> float:
    """Return how long the longest answer that may come can take while its engine lives.

    That is as long as its client lets it be, or where the client does not say as the engine's memory and settings do:
    what is foreseen or reserved bounds no answer.
    """
    tokens = request.arrival.max_tokens
    if tokens is None:
        longest = engine.settings.longest_answer
        tokens = min(longest, engine.gate.kv_limit or longest)
    service = engine.service
    patience = _ANSWER_PATIENCE if service.answers >= FEW_ANSWERS else _STRANGERS_PATIENCE
    return patience * (ttft_s + tokens * service.tpot_s(engine.gate.stream_limit))


def admission_at(prefixes: PrefixIndex, request: Request, place: Place, now: float) -> Admit:
    """Return the decision to run this request where `placement` has found room for it, on two legs where another engine reads its prompt.

    Its engine is the first of the `candidates`, if any holds of the prompt: what it holds takes memory, and is not read again.
    """
    engine, ttft_s, _better_until, candidates, reader = place
    gate, arrival = engine.gate, request.arrival
    unread_tokens = max(1, request.prompt_tokens - (candidates[0].cached_tokens if candidates else 0))
    kv_tokens, _ = gate.clip(request.kv_tokens, unread_tokens)
    first_event_by = request.deadline + max(ttft_s, engine.silence.lasts_s)
    if not arrival.stream:
        # It shows nothing until it is whole, and is not given up within a minute: for as long a stream may be silent, too.
        first_event_by = max(first_event_by, now + MINUTE_S) + _longest_s(request, engine, ttft_s)
        if arrival.time_allowed_s is not None:
            first_event_by = min(first_event_by, request.arrived_at + arrival.time_allowed_s)
    admit = make_admit(
        request.attempt,
        make_leg(engine.settings.name, gate.streams_of(arrival), kv_tokens, unread_tokens),
        waited_s=now - request.arrived_at,
        expected_ttft_s=ttft_s,
        first_event_by=first_event_by,
        reshaped=request.reshaped,
        due_at=None if request.age.promise is None else request.age.promise.due_at,
        classed=request.classed,
        candidates=candidates,
        first_seen=request.first_seen,
    )
    if engine.settings.overflow:
        return admit._replace(beyond_others=True)  # it needs no reader
    if reader is None:
        return admit
    cached_tokens = prefixes.held_by(reader.number, request.marks, request.prompt_tokens)
    unread_tokens = max(1, request.prompt_tokens - cached_tokens)
    kv_tokens, _ = reader.gate.clip(request.prompt_tokens, unread_tokens)
    reads = make_leg(reader.settings.name, admit.legs[0].streams, kv_tokens, unread_tokens)
    # What is handed over is not read again, but for its last token.
    return admit._replace(legs=(admit.legs[0]._replace(prompt_tokens=1), reads))

"""Commit: write a plan down, admit from the queue, and refuse out of it. Whether, `assess` says; this says what has happened."""

from math import inf, nextafter
from typing import Final

from millgate.core.decisions import Admit, Decision, Ended, Yield
from millgate.core.governor import legs
from millgate.core.governor.allowances import Allowances
from millgate.core.governor.assess import Plan, admission_at, unfit
from millgate.core.governor.knowledge import Attempts, Knowledge, Waiting
from millgate.core.governor.passing import Look, is_without_room, mark_blocked, wake_for_opening
from millgate.core.governor.placement import Place, is_in_time, roomy_engine
from millgate.core.governor.promises import UNPROMISED, queues_newcomers, refusal, short_refusal
from millgate.core.governor.turns import next_queued
from millgate.core.limits.gate import is_seen_read
from millgate.core.routing.working_set import MOST_PASSED_OVER, LiveSession, WorkingSets
from millgate.core.state.attempt import Attempt, Request
from millgate.core.state.engine import Engine, usual_kv_tokens
from millgate.core.state.lane import Totals, less_important
from millgate.core.state.pool import Pool
from millgate.core.tickets import SOONEST_RETURN_S, ClientKind
from millgate.core.tickets.appointment import Appointment, ReturnRecord
from millgate.core.words import Counted, Outcome, Reason

# Refusals that tell of a gate without room, rather than of this attempt alone.
_BLOCKED: Final = frozenset((Reason.SATURATED, Reason.QUEUE_FULL))
# Refusals by what a tenant may have, in whose line its client stands from then on.
_IN_LINES: Final = frozenset((Reason.QUOTA, Reason.TENANT_LIMIT))


def commit(knowledge: Knowledge, plan: Plan, now: float) -> tuple[Decision, ...]:
    """Make the plan true and return its decision, and after it the end of a queued request that had to make room."""
    request, decision, allowances = plan.request, plan.decision, knowledge.allowances
    would = decision.would if isinstance(decision, Admit) else None
    refused = decision.reason if isinstance(decision, Yield) else None
    _count_arrival(knowledge.totals, request, refused, now)
    allowances.arrived(request, refused or would, now)
    goes_on = isinstance(decision, Yield) and decision.retry and refused in _IN_LINES
    turn = None if goes_on else allowances.returned(request, now)
    if isinstance(decision, Yield):
        if decision.counted is Counted.ADAPTERS:
            knowledge.engines.placement.adapter_turns.wants(
                request, decision.retry_after_s * decision.retry, now
            )
        elif decision.reason in _BLOCKED:
            mark_blocked(knowledge.engines.routes, request, now)
        _leave_record(knowledge.attempts.waiting, allowances, knowledge.totals, request, decision, now)
        return (_with_quota(allowances, request, decision, now),)
    attempt = knowledge.attempts.take_in(request, now)
    request.lane.takes_in(now)
    allowances.taken_in(attempt, would, turn, now, is_queued=not isinstance(decision, Admit))
    if isinstance(decision, Admit):
        assert plan.engine is not None
        _start(knowledge.attempts, allowances, attempt, plan.engine, decision, now)
        return (_with_quota(allowances, request, decision, now),)
    displaced = _displace(knowledge, request, now)
    queue(knowledge.attempts, attempt, plan.queued_until, now)
    return (decision, *displaced)


def _count_arrival(totals: Totals, request: Request, refused: Reason | None, now: float) -> None:
    """Count an arrival, and its work where it is a new request that its tenant may have and an engine can run."""
    pool, record = request.route.pool, request.age.record
    unknown_retry = 0 if request.recognised else request.arrival.retry_count or 0
    totals.arrived(now, unknown_retry, None if record is None else record.known_from - SOONEST_RETURN_S)
    request.lane.arrives(request.queue, now)
    if request.is_retry:
        early = record is not None and record.is_early(now)
        totals.returned(
            labelled=bool(request.arrival.retry_count), recognised=request.recognised, early=early
        )
    if (told := request.age.appointment) is not None and request.age.is_promised:
        pool.appointments.was_late(max(0.0, now - told.due_at))
    if record is not None:
        pool.appointments.take(record)
    elif request.age.appointment is not None:
        pool.appointments.attendance.visited(request.tenant, ClientKind.FIRST)
    if not request.recognised:
        is_load = refused not in UNPROMISED
        work_s, service_s = (request.work_s, request.service_s) if is_load else (0.0, 0.0)
        pool.work_arrived(request.queue, work_s, service_s, now)
    pool.look(now)


def _with_quota(
    allowances: Allowances, request: Request, decision: Admit | Yield, now: float
) -> Admit | Yield:
    """Say what is left of its tenant's quotas, where there are any."""
    states = allowances.report(request, now)
    return decision._replace(quota=states) if states else decision


def _displace(knowledge: Knowledge, request: Request, now: float) -> tuple[Decision, ...]:
    """Refuse the last of its own queue where that is full, or of the least important lane where everything is.

    A request that is due keeps its place in a full queue; the newcomer then stands beyond the count. Where everything is
    full, `assess` has found a lane that is less important.
    """
    own = request.lane
    if own.settings.max_queue and own.queued >= own.settings.max_queue:
        last_queued = _last_without_promise(knowledge.attempts.by_number, request)
        if last_queued is not None:
            return refuse_queued(knowledge, last_queued, Reason.DISPLACED, now)
    if knowledge.attempts.queued_count < knowledge.max_queued:
        return ()
    lane = less_important(knowledge.lanes, own.settings.band)
    assert lane is not None
    last = max(lane.queues.values(), key=lambda each: len(each.order)).order.last()
    return refuse_queued(knowledge, knowledge.attempts.by_number[last.attempt], Reason.DISPLACED, now)


def _last_without_promise(attempts: dict[int, Attempt], request: Request) -> Attempt | None:
    """Return the last in its queue if it goes before that one, to whom nothing was promised for now; else None."""
    order = request.queue.order
    if order.ahead_of(request) >= len(order):
        return None
    last = attempts[order.last().attempt]
    return None if last.request.age.is_promised else last


def queue(attempts: Attempts, attempt: Attempt, queued_until: float | None, now: float) -> None:
    """Put an attempt into its queue, no longer than until then, and look at it again when something falls due."""
    attempt.waits(queued_until, now)
    attempts.enqueue(attempt, now)
    attempts.wake_at(attempt.give_up_at, attempt.request.attempt)
    attempts.wake_for_paces(now)
    wake_for_opening(attempts, attempt, now)


def _start(
    attempts: Attempts, allowances: Allowances, attempt: Attempt, engine: Engine, decision: Admit, now: float
) -> None:
    """Give the permit that `decision` speaks of."""
    request, engines = attempt.request, attempts.engines
    lane, pool, arrival, lane_queue = request.lane, request.route.pool, request.arrival, request.queue
    leg, gate = decision.legs[0], engine.gate
    cached_tokens = _cached_tokens(request, decision)
    if request.marks:
        regret_tokens = max(0, request.prompt_tokens - request.unread_tokens - cached_tokens)
        engines.prefixes.placed(engine.number, request.marks, request.prompt_tokens, regret_tokens)
        session = attempt.session or engines.placement.prices.session_of(request)
        alone_s = engines.placement.prices.learn(request, session, engine, cached_tokens, now)
        _place_session(engines.working_sets, attempt, session, engine, now).read_alone(alone_s, now)
    permit = attempt.admitted(engine, leg, decision.expected_ttft_s, cached_tokens, now)
    if len(decision.legs) > 1:
        legs.begin(engines, attempt, permit, decision.legs[1], now)
    lane.admits(now)
    pool.capacity_forecast.rate_changed()
    if attempt.tried is None:
        _judge_hint(request, now, admitted=True)
    if not request.recognised and request.arrived_at == now:
        _learn_idleness(pool, engine, leg.kv_tokens)
    lane_queue.order.started(request, now)
    if lane_queue.offered is not None:
        lane_queue.offered.started(request.work_s)
    allowances.admitted(now)
    if engine.provider is not None:
        engine.provider.started(request.attempt, request.sizes(cached_tokens), now)
    if (shares := pool.shares) is not None:
        shares.entered(lane.settings.name, leg.streams)
    engine.given_prompt(lane.settings.name, attempt.unread_tokens, engine.foreseen_s(permit), now)
    if not gate.has_room(1, 1):
        engine.became_full(now)
    engines.placement.started(request, engine, now)
    engines.note(permit, engine)
    if not is_seen_read(arrival):
        attempts.wake_at(permit.due_at, request.attempt)


def _learn_idleness(pool: Pool, engine: Engine, kv_tokens: int) -> None:
    """Learn that a newcomer finds a stream free while clients that were told to come later are away.

    That a small one finds memory that is left over, too little for a usual one, says nothing.
    """
    is_idle = pool.appointments.open > 0 and pool.appointments.is_as_expected(1.0)
    if is_idle and engine.gate.kv_left() + kv_tokens >= usual_kv_tokens(engine):
        per_s = pool.capacity_forecast.per_s()
        pool.overtaking.was_idle(pool.appointments.open / per_s, per_s)


def _cached_tokens(request: Request, decision: Admit) -> int:
    """Return how much of its prompt the engine that answers it need not read: what it holds, or all but the last token, which it is handed."""
    if len(decision.legs) > 1:
        return request.prompt_tokens - 1
    return decision.candidates[0].cached_tokens if decision.candidates else 0


def _place_session(
    working_sets: WorkingSets, attempt: Attempt, known: LiveSession | None, engine: Engine, now: float
) -> LiveSession:
    """The context of its session, the `known` one or one that it opens, lies on this engine from now on; return that session."""
    request = attempt.request
    name = request.arrival.session
    if attempt.session is None:
        if known is None or known.is_over:
            known = working_sets.opens(known, name, request.tenant, request.lane.settings.name, now)
        else:
            # Another turn of it, queued as this one was, has opened it.
            working_sets.awaits(known, now)
        attempt.is_turn_of(known)
    assert attempt.session is not None
    working_sets.placed(attempt.session, engine.number, request.prompt_tokens, request.marks)
    if name is not None and name != attempt.session.key:
        working_sets.also_known(attempt.session, name, request.tenant)
    return attempt.session


def dispatch(knowledge: Knowledge, now: float) -> list[Decision]:
    """Admit what waits and fits, hopeless ones out first; return every decision in order.

    A head without room stops what waits for the same engines, however small, or a large one would wait for ever; it
    does not stop what other engines can take. One whose adapter has no slot stops no other, nor does one that is held
    for a stream of its tenant. One that waits for the full engine that holds its prompt is passed over: for the time
    that this saves, and for half of its own at most.
    """
    decisions: list[Decision] = []
    look = Look(knowledge.attempts, knowledge.allowances.streams.waiting())
    attempts, engines = knowledge.attempts, knowledge.engines
    engines.placement.adapter_turns.turn(now)
    while (
        attempts.queued_count
        and (number := next_queued(engines.routes.pools, look.blocked, now, look.passed_over)) is not None
    ):
        attempt = attempts.by_number[number]
        request = attempt.request
        reason = unfit(request, now)
        if reason is not None:
            decisions += refuse_queued(knowledge, attempt, reason, now)
            continue
        held = engines.placement.held(request.marks, request.prompt_tokens)
        roomy = roomy_engine(engines.placement, request, held, now, look.kept)
        if roomy is None:
            is_without_room(look, attempts, attempt, held, now)
            continue
        engine, ttft_s, better_until = roomy[:3]
        if better_until > now and look.many < MOST_PASSED_OVER:
            look.passes(attempt, better_until, now)
        elif not is_in_time(engine, request, ttft_s, now):
            decisions += refuse_queued(knowledge, attempt, late_reason(request, now), now)
        else:
            decisions.append(_admit_queued(attempts, knowledge.allowances, attempt, roomy, now))
    attempts.leaves_room(look.kept, to_others=look.leaves_to_others())
    attempts.wake_for_paces(now)
    return decisions


def _admit_queued(
    attempts: Attempts,
    allowances: Allowances,
    attempt: Attempt,
    place: Place,
    now: float,
) -> Admit | Yield:
    request = attempt.request
    attempts.dequeue(attempt, now, admitted=True)
    admit = admission_at(attempts.engines.prefixes, request, place, now)
    if request.queue.window is not None:
        admit = admit._replace(window_s=min(now, attempt.window_until) - request.arrived_at)
    if attempt.tried is not None:
        admit = admit._replace(due_at=None)  # its hint was judged when it was first admitted
    _start(attempts, allowances, attempt, place[0], admit, now)
    return _with_quota(allowances, request, admit, now)


def late_reason(queued: Request, now: float) -> Reason:
    """Return which word of lateness applies: the deadline has passed, or the first token would miss it."""
    return Reason.EXPIRED if now >= queued.deadline else Reason.TOO_LATE


def leave_queue(attempts: Attempts, allowances: Allowances, attempt: Attempt, now: float) -> None:
    """Take an attempt out of its queue for good."""
    request = attempt.request
    attempts.dequeue(attempt, now)
    attempts.let_go(attempt, now)
    request.lane.lets_go(request.arrived_at, now)
    attempt.refused(now)
    allowances.over(request)


def refuse_queued(knowledge: Knowledge, attempt: Attempt, reason: Reason, now: float) -> tuple[Yield, Ended]:
    """Take an attempt out of its queue with a yield; return the yield and the attempt's end."""
    attempts, allowances, totals = knowledge.attempts, knowledge.allowances, knowledge.totals
    request = attempt.request
    held = allowances.streams.held(request.attempt)
    leave_queue(attempts, allowances, attempt, now)
    waited_s, allowed_s = now - request.arrived_at, request.deadline - request.arrived_at
    short = (
        allowances.own_streams(request, now, held.turn)
        if held is not None and reason is Reason.SATURATED
        else None
    )
    if short is None:
        decision = refusal(totals, request, reason, now, waited_s, allowed_s)
    else:
        decision = short_refusal(totals, request, short, now)
    judged = attempt.tried is not None
    _leave_record(
        attempts.waiting, allowances, totals, request, decision, now, held and held.turn, judged=judged
    )
    told = _with_quota(allowances, request, decision, now)
    assert isinstance(told, Yield)
    lane = request.lane.settings.name
    ended = Ended(
        request.attempt, Outcome.YIELDED, lane, None, waited_s, waited_s, None, 0, 0, decision.reason
    )
    return told, ended


def _leave_record(
    waiting: Waiting,
    allowances: Allowances,
    totals: Totals,
    request: Request,
    decision: Yield,
    now: float,
    turn: int | None = None,
    *,
    judged: bool = False,
) -> None:
    """Count the yield and remember the request, so that it keeps its age when it returns."""
    reason, hint = decision.reason, decision.retry_after_s
    request.lane.refuses(request.queue, reason, now, is_retry=request.is_retry)
    if not judged:
        _judge_hint(request, now, admitted=False)
    totals.hinted()
    totals.waited(request.arrived_at, now)
    if reason is Reason.TOO_LARGE or request.arrival.fingerprint is None:
        return
    appointment = Appointment(now, hint)
    if reason in _IN_LINES and decision.retry:
        allowances.told(request, reason, _kind(request), appointment, turn, now)
    known_from, until = appointment.known_from, appointment.known_until(request.lane_deadline)
    if reason in UNPROMISED and decision.retry:
        lapses_at = appointment.lapses_at if reason in _IN_LINES else 0.0
        record = record_of(request, known_from, until, None, lapses_at, told_at=appointment.due_at)
    elif decision.retry:
        oldest = _oldest_age(waiting, request)
        record = record_of(request, known_from, until, appointment.due_at, appointment.lapses_at, oldest)
    elif request.lane_deadline > now:
        record = record_of(request, known_from, request.lane_deadline)
    else:
        return
    request.route.pool.appointments.leave(record)


def _oldest_age(waiting: Waiting, request: Request) -> float:
    """Return the oldest age by which queues may rank it when it is back.

    Where newcomers are queued all wait by their own age; elsewhere it goes behind the queued requests of its tenant.
    """
    if queues_newcomers(request.lane):
        return request.first_seen
    return nextafter(waiting.youngest(request.tenant), inf)


def record_of(
    request: Request,
    known_from: float,
    known_until: float,
    due_at: float | None = None,
    open_until: float = 0.0,
    oldest: float = -inf,
    told_at: float | None = None,
) -> ReturnRecord:
    """Return the record by which this request is recognised if it comes back in that time.

    No older than `oldest` do queues rank it then. `told_at` is when it was asked back without an appointment.
    """
    return ReturnRecord(
        request.tenant,
        request.body(),
        request.first_seen,
        request.arrival_number,
        known_from,
        known_until,
        due_at,
        open_until,
        request.age.lined_up_at,
        request.age.early_returns,
        request.turn,
        work_s=request.service_s,
        as_old_as=oldest,
        told_at=told_at,
        kind=_kind(request),
        lane=request.lane.tag,
    )


def _kind(request: Request) -> ClientKind:
    return ClientKind.RETURNED if request.recognised else ClientKind.FIRST


def _judge_hint(request: Request, now: float, *, admitted: bool) -> None:
    """Count the hint that this request has followed, if it was back on time, by whether it was admitted then.

    A return before the promise has nearly come, or after its appointment has lapsed, is not on time.
    """
    told, back_at = request.age.promise, request.arrived_at
    if told is None or not told.is_honoured(back_at):
        return
    pool = request.route.pool
    kept = admitted and told.is_kept(back_at, now)
    request.lane.judged_hint(kept=kept)
    if told is not request.age.appointment:
        return  # what a quota promised says nothing of the line of engines
    per_s = pool.capacity_forecast.per_s()
    if kept:
        pool.overtaking.was_kept(told.hint_s, per_s)
    elif request.route.up and pool.appointments.is_as_expected(request.age.told_share):
        pool.overtaking.was_broken(told.hint_s, per_s)

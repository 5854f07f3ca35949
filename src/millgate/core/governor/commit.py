"""Commit: write a plan down, admit from the queue, and refuse out of it. Nothing here asks whether; `assess` did."""

from collections import deque
from math import inf, nextafter
from typing import Final

from millgate.core.decisions import Admit, Decision, Ended, Yield
from millgate.core.governor.allowances import Allowances
from millgate.core.governor.assess import (
    Plan,
    admission,
    all_down,
    fit_somewhere,
    is_agreed,
    less_important,
)
from millgate.core.governor.hint_truth import judge_hint
from millgate.core.governor.knowledge import Knowledge
from millgate.core.governor.placement import is_in_time
from millgate.core.governor.pools import Routes
from millgate.core.governor.promises import queues_newcomers
from millgate.core.governor.refusal import OF_ONE_TENANT, refusal
from millgate.core.governor.streams import is_only_read
from millgate.core.governor.turns import latest_start, next_queued
from millgate.core.governor.waiting import Waiting
from millgate.core.governor.watch import arrived
from millgate.core.state.attempt import Attempt, is_retry
from millgate.core.state.engine import Engine
from millgate.core.state.pool import Route
from millgate.core.state.totals import Totals
from millgate.core.tickets import Appointment, ClientKind, ReturnRecord
from millgate.core.words import Outcome, Reason

# Refusals that tell of a gate without room, rather than of this attempt alone.
_BLOCKED: Final = frozenset((Reason.SATURATED, Reason.QUEUE_FULL))


def commit(knowledge: Knowledge, plan: Plan, now: float) -> tuple[Decision, ...]:
    """Make the plan true and return its decision, and after it the end of a queued request that had to make room."""
    draft, decision = plan.draft, plan.decision
    knowledge.totals.arrived(now, is_retry=is_retry(draft))
    draft.lane.arrives(draft.queue)
    if is_retry(draft):
        _count_retry(knowledge.totals, plan, now)
    agreed = is_agreed(draft, plan.record, now)
    arrived(draft, now)
    if isinstance(decision, Yield):
        reason = decision.reason
        knowledge.allowances.arrived(draft, agreed=agreed, refused=reason, now=now)
        if reason in _BLOCKED:
            _mark_blocked(knowledge.routes, draft.route.up, now)
        if reason is not Reason.QUOTA:
            knowledge.allowances.returned(draft)
        _leave_record(knowledge, draft, decision, now)
        return (_with_quota(knowledge.allowances, draft, decision, now),)
    knowledge.allowances.returned(draft)
    would = decision.would if isinstance(decision, Admit) else None
    knowledge.allowances.arrived(draft, agreed=agreed, refused=would, now=now)
    knowledge.take_in(draft)
    draft.lane.takes_in(now)
    knowledge.allowances.taken_in(draft, would, now)
    if isinstance(decision, Admit):
        assert plan.engine is not None
        _start(knowledge, draft, plan.engine, decision, now)
        return (_with_quota(knowledge.allowances, draft, decision, now),)
    displaced = _displace(knowledge, draft, now)
    _hold(knowledge, draft, now)
    return (decision, *displaced)


def _with_quota(allowances: Allowances, draft: Attempt, decision: Admit | Yield, now: float) -> Admit | Yield:
    """Say what is left of its tenant's quotas, where there are any."""
    states = allowances.report(draft, now)
    return decision._replace(quota=states) if states else decision


def _displace(knowledge: Knowledge, draft: Attempt, now: float) -> tuple[Decision, ...]:
    """Refuse the last of its own queue where that is full, or of the least important lane where everything is.

    A request that is due keeps its place in a full queue; the newcomer then stands beyond the count. Where everything is
    full, `assess` has found a lane that is less important.
    """
    own = draft.lane
    if own.settings.max_queue and own.queued >= own.settings.max_queue:
        last_queued = _last_without_promise(knowledge.attempts, draft)
        if last_queued is not None:
            return refuse_queued(knowledge, last_queued, Reason.DISPLACED, now)
    if knowledge.queued_count < knowledge.max_queued:
        return ()
    lane = less_important(knowledge.lanes, draft.lane.settings.band)
    assert lane is not None
    last = max(
        (queue for queue in lane.queues.values() if len(queue.order)), key=lambda each: len(each.order)
    )
    queued = deque(last.order, maxlen=1)[0]
    return refuse_queued(knowledge, knowledge.attempts[queued.attempt], Reason.DISPLACED, now)


def _last_without_promise(attempts: dict[int, Attempt], draft: Attempt) -> Attempt | None:
    """Return the last in its queue if it goes before that one, to whom nothing was promised for now; else None."""
    order = draft.queue.order
    if order.ahead_of(draft) >= len(order):
        return None
    last = attempts[deque(order, maxlen=1)[0].attempt]
    is_promised = last.appointment is not None and last.appointment.is_honoured(last.arrived_at)
    return None if is_promised else last


def _count_retry(totals: Totals, plan: Plan, now: float) -> None:
    draft, record = plan.draft, plan.record
    labelled, early = bool(draft.arrival.retry_count), record is not None and record.is_early(now)
    totals.returned(labelled=labelled, recognised=draft.recognised, early=early)
    if record is not None:
        draft.route.pool.appointments.take(record)


def _hold(knowledge: Knowledge, draft: Attempt, now: float) -> None:
    start_by = latest_start(draft, draft.route.up)
    draft.waits_until(start_by if draft.queued_until is None else min(start_by, draft.queued_until))
    knowledge.enqueue(draft, now)
    if (opens_at := draft.queue.opens_at()) is not None:
        draft.waits_for_batch(max(now, opens_at))
        knowledge.wake_at(draft.window_until, draft.attempt)
    knowledge.wake_at(draft.give_up_at, draft.attempt)
    knowledge.wake_for_pace(draft.queue)
    wake_for_account(knowledge, draft, now)


def wake_for_account(knowledge: Knowledge, queued: Attempt, now: float) -> None:
    """Look again when an account has room for this attempt: no permit has to end for that."""
    waits = [
        wait_s
        for engine in queued.route.up
        if engine.provider is not None and 0.0 < (wait_s := engine.provider.wait_s(queued.sizes(), now)) < inf
    ]
    if waits:
        knowledge.wake_at(now + min(waits), queued.attempt)


def _start(knowledge: Knowledge, draft: Attempt, engine: Engine, decision: Admit, now: float) -> None:
    """Give the permit that `decision` speaks of."""
    leg, lane, gate, arrival = decision.legs[0], draft.lane, engine.gate, draft.arrival
    permit = draft.admitted(engine, leg, decision.expected_ttft_s, now)
    lane.admits(now)
    pool = draft.route.pool
    pool.capacity_forecast.rate_changed()
    if draft.appointment is not None:
        judge_hint(draft, now, admitted=True)
    if _finds_idle(draft, now) and pool.appointments.is_as_expected(1.0):
        per_s = pool.capacity_forecast.per_s()
        pool.overtaking.was_idle(pool.appointments.open / per_s, per_s)
    draft.queue.order.started(draft, now)
    if draft.queue.offered is not None:
        draft.queue.offered.started(draft.work_s)
    knowledge.allowances.admitted(now)
    if engine.provider is not None:
        engine.provider.started(permit, draft.sizes(), now)
    if (shares := pool.shares) is not None:
        shares.entered(lane.settings.name, leg.streams)
    engine.given_prompt(lane.settings.name, draft.prompt_tokens, now)
    knowledge.wake_for_pace(draft.queue)
    if not gate.has_room(1, 1):
        engine.drain.became_full(now, gate.streams)
    knowledge.placement.started(draft)
    knowledge.note(permit, engine)
    if not (arrival.stream or is_only_read(arrival)):
        knowledge.wakes.add_in_line(permit.due_at, draft.attempt, knowledge.attempts)


def _finds_idle(draft: Attempt, now: float) -> bool:
    """Return whether a newcomer finds a stream free while clients that were told to come later are away."""
    return not draft.recognised and draft.arrived_at == now and draft.route.pool.appointments.open > 0


def dispatch(knowledge: Knowledge, now: float) -> list[Decision]:
    """Admit what waits and fits, hopeless ones out first; return every decision in order.

    A head without room stops what waits for the same engines, however small, or a large one would wait for ever;
    it does not stop what other engines can take.
    """
    decisions: list[Decision] = []
    blocked: list[Route] = []
    while (
        knowledge.queued_count
        and (queued := next_queued(knowledge.pools, knowledge.attempts, blocked, now)) is not None
    ):
        engines = queued.route.up
        down = all_down(engines, now)
        if down or not fit_somewhere(engines, queued):
            reason = Reason.NO_ENGINE if down else Reason.TOO_LARGE
            decisions += refuse_queued(knowledge, queued, reason, now)
            continue
        roomy = knowledge.roomy_engine(queued, engines, now)
        if roomy is None:
            _mark_blocked(knowledge.routes, engines, now)
            wake_for_account(knowledge, queued, now)
            blocked.append(queued.route)
            continue
        engine, ttft_s = roomy
        if not is_in_time(engine, queued, ttft_s, now):
            decisions += refuse_queued(knowledge, queued, late_reason(queued, now), now)
            continue
        knowledge.dequeue(queued, now, admitted=True)
        admit = admission(queued, engine, ttft_s, now)
        if queued.queue.window is not None:
            admit = admit._replace(window_s=min(now, queued.window_until) - queued.arrived_at)
        _start(knowledge, queued, engine, admit, now)
        decisions.append(_with_quota(knowledge.allowances, queued, admit, now))
    return decisions


def _mark_blocked(routes: Routes, engines: tuple[Engine, ...], now: float) -> None:
    """Note that a request was not let in although streams may be free: a gate is full in another meter, and drains as such."""
    for engine in engines:
        if engine.became_full(now):
            routes.pool_of(engine).capacity_forecast.rate_changed()


def late_reason(queued: Attempt, now: float) -> Reason:
    """Return which word of lateness applies: the deadline has passed, or the first token would miss it."""
    return Reason.EXPIRED if now >= queued.deadline else Reason.TOO_LATE


def refuse_queued(knowledge: Knowledge, queued: Attempt, reason: Reason, now: float) -> tuple[Yield, Ended]:
    """Take an attempt out of its queue with a yield; return the yield and the attempt's end."""
    knowledge.dequeue(queued, now)
    knowledge.let_go(queued)
    queued.lane.lets_go(queued.arrived_at, now)
    queued.refused()
    queued.gives_back(now)
    knowledge.allowances.over(queued)
    waited_s = now - queued.arrived_at
    decision = refusal(knowledge.totals, queued, reason, now, waited_s, queued.deadline - queued.arrived_at)
    _leave_record(knowledge, queued, decision, now)
    told = _with_quota(knowledge.allowances, queued, decision, now)
    assert isinstance(told, Yield)
    ended = Ended(
        queued.attempt,
        Outcome.YIELDED,
        queued.lane.settings.name,
        None,
        waited_s,
        waited_s,
        None,
        0,
        0,
        reason,
    )
    return told, ended


def _leave_record(knowledge: Knowledge, draft: Attempt, decision: Yield, now: float) -> None:
    """Count the yield and remember the request, so that it keeps its age when it returns."""
    reason, hint = decision.reason, decision.retry_after_s
    draft.lane.refuses(reason, now, is_retry=is_retry(draft))
    if draft.appointment is not None:
        judge_hint(draft, now, admitted=False)
    knowledge.totals.hinted()
    if reason is Reason.TOO_LARGE or draft.arrival.fingerprint is None:
        return
    appointment = Appointment(now, hint)
    if reason is Reason.QUOTA and decision.retry:
        knowledge.allowances.told(draft, _kind(draft), appointment, now)
    known_from, until = appointment.known_from, appointment.known_until(draft.lane_deadline)
    if reason in OF_ONE_TENANT and decision.retry:
        record = record_of(draft, known_from, until, told_at=appointment.due_at)
    elif decision.retry:
        oldest = _oldest_age(knowledge.waiting, draft)
        record = record_of(draft, known_from, until, appointment.due_at, appointment.lapses_at, oldest)
    elif draft.lane_deadline > now:
        record = record_of(draft, known_from, draft.lane_deadline)
    else:
        return
    draft.route.pool.appointments.leave(record)


def _oldest_age(waiting: Waiting, draft: Attempt) -> float:
    """Return the oldest age by which queues may rank it when it is back.

    Where newcomers are queued all wait by their own age; elsewhere it goes behind the queued requests of its tenant.
    """
    if queues_newcomers(draft.lane):
        return draft.first_seen
    return nextafter(waiting.youngest(draft.tenant), inf)


def record_of(
    draft: Attempt,
    known_from: float,
    known_until: float,
    due_at: float | None = None,
    open_until: float = 0.0,
    oldest: float = -inf,
    told_at: float | None = None,
) -> ReturnRecord:
    """Return the record by which this attempt's request is recognised if it comes back in that time.

    No older than `oldest` do queues rank it then. `told_at` is when it was asked back without an appointment.
    """
    return ReturnRecord(
        draft.tenant,
        draft.body(),
        draft.first_seen,
        draft.arrival_number,
        known_from,
        known_until,
        due_at,
        open_until,
        draft.lined_up_at,
        draft.early_returns,
        draft.turn,
        work_s=draft.service_s,
        as_old_as=oldest,
        told_at=told_at,
        kind=_kind(draft),
        lane=draft.lane.tag,
    )


def _kind(draft: Attempt) -> ClientKind:
    return ClientKind.RETURNED if draft.recognised else ClientKind.FIRST

"""Numbers out: builds the frozen snapshot from what the governor knows; changes nothing."""

from collections.abc import Sequence
from math import inf

from millgate.core.decisions import Admit, Candidate, Explanation, Queue
from millgate.core.events import Arrived
from millgate.core.governor.assess import assess
from millgate.core.governor.knowledge import Knowledge
from millgate.core.governor.placement import Placement
from millgate.core.governor.turns import limit_of
from millgate.core.governor.watch import has_fresh_gauge
from millgate.core.routing.prefix_index import MOST_HOLDERS
from millgate.core.snapshot import (
    Capacity,
    EngineSnapshot,
    LaneSnapshot,
    LegsSnapshot,
    PoolSnapshot,
    RetrySnapshot,
    Snapshot,
)
from millgate.core.state.attempt import Request
from millgate.core.state.engine import Engine
from millgate.core.state.lane import Lane, least_reading_s
from millgate.core.state.pool import Pool, Routes
from millgate.core.tickets import ClientKind
from millgate.core.words import FailureKind, Reason, Role, Stage


def snapshot(knowledge: Knowledge, now: float) -> Snapshot:
    """Return everything at one instant."""
    lanes = [_lane(knowledge, lane, now) for lane in knowledge.lanes_in_use()]
    budget, legs = knowledge.allowances.budget, knowledge.engines.legs
    return Snapshot(
        now=now,
        draining=knowledge.draining,
        is_served=any(route.up for route in knowledge.engines.routes.every),
        lanes=tuple(lanes),
        engines=tuple(
            _engine(engine, knowledge.engines.placement.adapter_turns.adapters.loads(engine.number), now)
            for engine in knowledge.engines.by_name.values()
        ),
        retries=_retries(knowledge, now),
        good_output_tokens=knowledge.totals.good_output_tokens,
        wasted_prompt_tokens=knowledge.totals.wasted_prompt_tokens,
        wasted_output_tokens=knowledge.totals.wasted_output_tokens,
        bytes_per_token=tuple(knowledge.prompt_sizes.ratios()),
        mean_output_tokens=tuple(knowledge.output_length.means()),
        prompt_error=knowledge.prompt_sizes.error(),
        output_error=knowledge.output_length.error(),
        pools=tuple(_pool(pool) for pool in knowledge.engines.routes.pools),
        tenants=() if budget is None else budget.amplification(),
        little=knowledge.instruments.total([lane.little for lane in lanes]),
        quotas=tuple(knowledge.allowances.ledger.levels(now)),
        live_sessions=knowledge.engines.working_sets.sessions,
        working_set_share=_working_set_share(knowledge),
        predicted_cached_tokens=knowledge.engines.prefixes.predicted_tokens,
        found_cached_tokens=knowledge.engines.prefixes.found_tokens,
        regret_tokens=knowledge.engines.prefixes.regret_tokens,
        legs=LegsSnapshot(legs.begun, legs.fetched, legs.lost, legs.expired, legs.tokens, legs.transfer_s),
        legs_by_role=_legs_by_role(knowledge),
    )


def explanation(knowledge: Knowledge, arrival: Arrived, now: float) -> Explanation:
    """Return what this arrival would get now, and the numbers behind it."""
    plan = assess(knowledge, arrival, now)
    request = plan.request
    engine = plan.engine or next(iter(request.route.up), None)
    engines = request.route.up or request.route.engines
    candidates = plan.decision.candidates if isinstance(plan.decision, Admit | Queue) else ()
    if not candidates and len(request.route.up) > 1:
        candidates = _by_cost(knowledge.engines.placement, request, plan.engine, now)
    return Explanation(
        decision=plan.decision,
        lane=request.lane.settings.name,
        engine=plan.engine.settings.name if plan.engine else None,
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
        kv_tokens=request.kv_tokens,
        first_seen=request.first_seen,
        recognised=request.recognised,
        deadline=request.deadline,
        expected_wait_s=plan.expected_wait_s,
        expected_ttft_s=engine.expected_ttft_s(request.unread_tokens, now) if engine else 0.0,
        running=knowledge.engines.running(),
        queued=knowledge.attempts.queued_count,
        limit=knowledge.engines.stream_limit(),
        reading_s=least_reading_s(engines, request.unread_tokens),
        classed=request.classed,
        candidates=candidates,
    )


def _by_cost(
    placement: Placement, request: Request, taken: Engine | None, now: float
) -> tuple[Candidate, ...]:
    """Return the engines that are up, the one taken first, those for overflow last, as many as are ever compared."""
    session = placement.prices.session_of(request)
    every = [
        (each is not taken, each.settings.overflow, placement.candidate(each, request, {}, session, now))
        for each in request.route.up
    ]
    every.sort(key=lambda each: (*each[:2], each[2].cost_s))
    return tuple([each for *_, each in every[: MOST_HOLDERS + 1]])


def _legs_by_role(knowledge: Knowledge) -> tuple[tuple[Role, int], ...]:
    by_role = knowledge.engines.legs.by_role
    answering = sum([lane.admitted for lane in knowledge.lanes.values()], 0)
    return (Role.UNIFIED, answering - by_role[Role.DECODE]), *by_role.items()


def _working_set_share(knowledge: Knowledge) -> float:
    """Return the part of the memory of engines that tell theirs which live sessions take."""
    engines, sets = knowledge.engines.by_name.values(), knowledge.engines.working_sets
    memory = sum([each.gate.kv_limit or 0 for each in engines], 0)
    return sum([sets.tokens(each.number) for each in engines], 0.0) / memory if memory else 0.0


def capacity(knowledge: Knowledge) -> Capacity:
    """Return two numbers of the snapshot for a fiftieth of its cost: replies of the line door carry them."""
    engines = knowledge.engines
    limit = sum([each.limit for each in engines.by_name.values() if each.up and not each.only_reads], 0)
    return Capacity(engines.running(), limit)


def _retries(knowledge: Knowledge, now: float) -> RetrySnapshot:
    pools = knowledge.engines.routes.pools
    standing = [pool.appointments.standing(now) for pool in pools]
    attendance = [pool.appointments.shares(now) for pool in pools]
    budget = knowledge.allowances.budget
    known = () if budget is None else budget.amplification()
    requests = sum([each.requests for each in known], 0)
    drain_per_s = max([pool.capacity_forecast.per_s() for pool in pools], default=0.0)
    return RetrySnapshot(
        attempts=knowledge.totals.arrivals,
        labelled=knowledge.totals.labelled,
        recognised=knowledge.totals.recognised,
        early=knowledge.totals.early,
        appointments=sum([open_ones for open_ones, _ in standing]) + knowledge.allowances.lines.standing(now),
        records=sum([records for _, records in standing]),
        appointments_dropped=sum([pool.appointments.dropped for pool in pools]),
        amplification=sum([each.attempts for each in known]) / requests if requests else None,
        amplification_1m=knowledge.totals.amplification(now, 60.0),
        amplification_10m=knowledge.totals.amplification(now, 600.0),
        budget=None if budget is None else budget.budget(now, drain_per_s),
        budget_spent=None if budget is None else budget.spent(now),
        attendance_first=min([shares[ClientKind.FIRST] for shares in attendance], default=1.0),
        attendance_returned=min([shares[ClientKind.RETURNED] for shares in attendance], default=1.0),
    )


def _pool(pool: Pool) -> PoolSnapshot:
    names = tuple(engine.settings.name for engine in pool.engines)
    return PoolSnapshot(names, pool.warning.read(), pool.warning.alarms())


def _lane(knowledge: Knowledge, lane: Lane, now: float) -> LaneSnapshot:
    queued = [
        knowledge.attempts.by_number[each.attempt].request
        for queue in lane.queues.values()
        for each in queue.order
    ]
    return LaneSnapshot(
        name=lane.settings.name,
        queued=lane.queued,
        queued_tokens=lane.queued_tokens,
        queued_bytes=lane.queued_bytes,
        oldest_queued_s=max((now - each.arrived_at for each in queued), default=0.0),
        headroom=_headroom(knowledge.engines.routes.pools, lane),
        expected_wait_s=_expected_wait_s(knowledge.engines.routes, lane, now),
        running=lane.running,
        arrived=lane.arrived,
        admitted=lane.admitted,
        outcomes=tuple(lane.outcomes.items()),
        yields=tuple((cause, count) for cause, count in lane.causes.items() if isinstance(cause, Reason)),
        gone=tuple((cause, count) for cause, count in lane.causes.items() if isinstance(cause, Stage)),
        failures=tuple(
            (cause, count) for cause, count in lane.causes.items() if isinstance(cause, FailureKind)
        ),
        little=lane.little(now),
        slo=lane.slo.read(now),
        hints_kept=lane.hints_kept,
        hints_broken=lane.hints_broken,
    )


def _expected_wait_s(routes: Routes, lane: Lane, now: float) -> float:
    """Return how long a newcomer at the end of this lane would wait, on the slowest of its routes."""
    waits = []
    for each in routes.every:
        route = each if lane.settings.overflow_after_s < inf else each.own
        queue = lane.queues.get(route)
        queued = 0 if queue is None else len(queue.order)
        if route.up and (queued or not route.free()):
            waits.append(route.pool.capacity_forecast.wait_s(queued + 1, now))
    return max(waits, default=0.0)


def _headroom(pools: Sequence[Pool], lane: Lane) -> int:
    name = lane.settings.name
    return sum([pool.shares.headroom(name, limit_of(pool)) for pool in pools if pool.shares is not None])


def _engine(engine: Engine, adapter_loads: int, now: float) -> EngineSnapshot:
    gate = engine.gate
    seen = engine.seen if has_fresh_gauge(engine, now) else None
    return EngineSnapshot(
        name=engine.settings.name,
        up=engine.up,
        running=gate.streams,
        departing=len(engine.departing),
        limit=engine.limit,
        kv_tokens=gate.kv_tokens,
        kv_limit=gate.kv_limit,
        prefill_tokens=gate.prefill_tokens,
        prefill_limit=gate.prefill_limit,
        prefill_share=None if engine.prompts.pace is None else engine.prompts.pace.share,
        drain_per_s=engine.drains().per_s,
        expected_ttft_s=engine.expected_ttft_s(round(engine.work_prompt.mean), now),
        expected_tpot_s=engine.service.tpot_s(gate.streams),
        expected_service_s=engine.expected_service_s(),
        abort_lag_s=engine.hangups.lag.mean,
        ignores_hangups=engine.hangups.ignored,
        seen_running=seen.running if seen else None,
        seen_waiting=seen.waiting if seen else None,
        seen_kv_share=seen.kv_share if seen else None,
        seen_preemptions=seen.preemptions if seen else None,
        seen_age_s=None if engine.seen is None else now - engine.seen.seen_at,
        account=None if engine.provider is None else engine.provider.reading(now),
        role=engine.settings.role,
        adapter_loads=adapter_loads,
        silent_s=engine.silence.lasts_s,
    )

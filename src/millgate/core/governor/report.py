"""Numbers out: builds the frozen snapshot from what the governor knows; changes nothing."""

from collections.abc import Sequence

from millgate.core.governor.knowledge import Knowledge
from millgate.core.governor.placement import limit_of
from millgate.core.governor.watch import has_fresh_gauge
from millgate.core.littles_law.law import total
from millgate.core.retry_budget import RetryBudget
from millgate.core.snapshot import (
    Capacity,
    EngineSnapshot,
    LaneSnapshot,
    PoolSnapshot,
    RetrySnapshot,
    Snapshot,
    TenantSnapshot,
)
from millgate.core.state.engine import Engine
from millgate.core.state.lane import Lane
from millgate.core.state.pool import Pool, Routes
from millgate.core.tickets.appointment import ClientKind
from millgate.core.words import FailureKind, Reason, Stage


def snapshot(knowledge: Knowledge, now: float) -> Snapshot:
    """Return everything at one instant."""
    lanes = [_lane(knowledge, lane, now) for lane in knowledge.lanes.values()]
    return Snapshot(
        now=now,
        draining=knowledge.draining,
        lanes=tuple(lanes),
        engines=tuple(_engine(engine, now) for engine in knowledge.engines.values()),
        retries=_retries(knowledge, now),
        good_output_tokens=knowledge.totals.good_output_tokens,
        wasted_prompt_tokens=knowledge.totals.wasted_prompt_tokens,
        wasted_output_tokens=knowledge.totals.wasted_output_tokens,
        bytes_per_token=tuple(knowledge.prompt_sizes.ratios()),
        mean_output_tokens=tuple(knowledge.output_length.means()),
        prompt_error=knowledge.prompt_sizes.error(),
        output_error=knowledge.output_length.error(),
        pools=tuple(_pool(pool) for pool in knowledge.pools),
        tenants=_tenants(knowledge.allowances.budget),
        little=total([lane.little for lane in lanes]),
        quotas=tuple(knowledge.allowances.ledger.levels(now)),
    )


def capacity(knowledge: Knowledge) -> Capacity:
    """Return two numbers of the snapshot for a fiftieth of its cost: replies of the line door carry them."""
    running = limit = 0
    for engine in knowledge.engines.values():
        running += engine.gate.streams
        if engine.up:
            limit += engine.limit
    return Capacity(running, limit)


def _retries(knowledge: Knowledge, now: float) -> RetrySnapshot:
    standing = [pool.appointments.standing(now) for pool in knowledge.pools]
    attendance = [pool.appointments.attendance(now) for pool in knowledge.pools]
    budget = knowledge.allowances.budget
    known = () if budget is None else budget.amplification()
    requests = sum([each.requests for each in known], 0)
    drain_per_s = max([pool.capacity_forecast.per_s() for pool in knowledge.pools], default=0.0)
    return RetrySnapshot(
        attempts=knowledge.totals.arrivals,
        labelled=knowledge.totals.labelled,
        recognised=knowledge.totals.recognised,
        early=knowledge.totals.early,
        appointments=sum([open_ones for open_ones, _ in standing]),
        records=sum([records for _, records in standing]),
        appointments_dropped=sum([pool.appointments.dropped for pool in knowledge.pools]),
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


def _tenants(budget: RetryBudget | None) -> tuple[TenantSnapshot, ...]:
    return () if budget is None else tuple(TenantSnapshot(*each) for each in budget.amplification())


def _lane(knowledge: Knowledge, lane: Lane, now: float) -> LaneSnapshot:
    queued = [
        knowledge.attempts[each.attempt].request for queue in lane.queues.values() for each in queue.order
    ]
    return LaneSnapshot(
        name=lane.settings.name,
        queued=lane.queued,
        queued_tokens=lane.queued_tokens,
        queued_bytes=lane.queued_bytes,
        oldest_queued_s=max((now - each.arrived_at for each in queued), default=0.0),
        headroom=_headroom(knowledge.pools, lane),
        expected_wait_s=_expected_wait_s(knowledge.routes, lane, now),
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
    for route in routes.every:
        queue = lane.queues.get(route)
        queued = 0 if queue is None else len(queue.order)
        if route.up and (queued or _is_full(route.up)):
            waits.append(route.pool.capacity_forecast.wait_s(queued + 1, now))
    return max(waits, default=0.0)


def _headroom(pools: Sequence[Pool], lane: Lane) -> int:
    name = lane.settings.name
    return sum([pool.shares.headroom(name, limit_of(pool)) for pool in pools if pool.shares is not None])


def _is_full(engines: Sequence[Engine]) -> bool:
    return sum([engine.gate.streams for engine in engines]) >= sum([engine.limit for engine in engines], 0)


def _engine(engine: Engine, now: float) -> EngineSnapshot:
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
    )

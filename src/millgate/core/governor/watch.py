"""What the early warning and the adaptive limits are told, now and then; nothing here decides about a request."""

from typing import Final

from millgate.core.limits.base import LimitReading
from millgate.core.limits.signal import Signal
from millgate.core.littles_law.early_warning import Flow
from millgate.core.snapshot import PoolSnapshot
from millgate.core.state.attempt import Attempt
from millgate.core.state.engine import Engine
from millgate.core.state.permit import Permit
from millgate.core.state.pool import Pool

# A gauge older than this says nothing (polled once a second, three misses).
GAUGE_STALE_S: Final = 3.0


def arrived(draft: Attempt, now: float) -> None:
    """Count the work that a request brings; one that comes back has been counted."""
    pool = draft.route.pool
    if not draft.recognised:
        pool.work_arrived(draft.service_s)
        offered = draft.queue.offered
        if offered is not None and draft.work_s > 0.0:
            if offered.is_over(now):
                offered.learn(now, pool.capacity_forecast.per_s())
            offered.arrived(draft.work_s)
    look(pool, now)


def look(pool: Pool, now: float) -> None:
    """Feed the early warning, if its time has come."""
    if not pool.is_due(now):
        return
    pool.looked(now)
    up = [engine for engine in pool.engines if engine.up]
    bounds_s = [queue.settings.deadline_s for queue in pool.queues]
    flow = Flow(
        pool.arrived,
        pool.arrived_work_s,
        pool.done_work_s,
        sum([engine.gate.streams for engine in up]),
        pool.queued_count,
        sum([engine.limit for engine in up]),
        max(bounds_s, default=0.0),
    )
    pool.warning.feed(now, flow)


def has_fresh_gauge(engine: Engine, now: float) -> bool:
    """Return whether the engine's running and waiting are known and not stale."""
    seen = engine.seen
    return seen is not None and seen.running is not None and now - seen.seen_at <= GAUGE_STALE_S


def move_limit(engine: Engine, now: float) -> int:
    """Let an adaptive limit learn from the last second; return by how many streams it has risen."""
    signal = engine.signal
    if signal is None:
        return 0
    seen = engine.seen if has_fresh_gauge(engine, now) else None
    before = engine.limit
    reading = signal.read(now, seen.kv_share if seen else None, seen.waiting if seen else None)
    if reading is None:
        return 0
    if _prompts_pay(engine, signal, reading):
        reading = reading._replace(tpot_s=None)
    engine.gate.limit.observe(reading)
    return engine.limit - before


def _prompts_pay(engine: Engine, signal: Signal, reading: LimitReading) -> bool:
    """Return whether a slow TPOT is left to the pace of prompts that a lane is protected from; its limit then stays."""
    pace = engine.prompts.pace
    if pace is None:
        return False
    tpot_s = signal.tpot_s(reading.max_inflight, pace.protection.tpot_share)
    return tpot_s is not None and pace.observe(reading.window_s, tpot_s)


def grew(permit: Permit, engine: Engine, output_tokens: int, now: float) -> None:
    """Note how many tokens a stream has made by now."""
    if engine.signal is not None and permit.first_token_at is not None:
        engine.signal.progressed(max(0, output_tokens - permit.looked_tokens), now - permit.looked_at)
    permit.grows(output_tokens, now)


def answered(permit: Permit, engine: Engine, output_tokens: int, now: float) -> None:
    """Note a whole answer: the tokens since the last look, and its mean time per token."""
    signal = engine.signal
    if signal is None:
        return
    began_at = permit.began_unseen(now)
    per_stream = output_tokens / permit.answers
    tpot_s = (now - began_at) / (per_stream - 1) if per_stream >= 2 else 0.0
    signal.progressed(max(0, output_tokens - permit.looked_tokens), now - permit.looked_at)
    signal.finished(began_at, tpot_s)


def snapshot(pool: Pool) -> PoolSnapshot:
    """Return the pool's signals as numbers, and its alarms."""
    names = tuple(engine.settings.name for engine in pool.engines)
    return PoolSnapshot(names, pool.warning.read(), pool.warning.alarms())

"""What the early warning, the adaptive limits and first lengths are told, now and then; nothing here decides about a request."""

from typing import Final

from millgate.core.governor.knowledge import Knowledge
from millgate.core.lifecycle import State
from millgate.core.limits.gate import LimitReading
from millgate.core.limits.signal import Signal
from millgate.core.littles_law.early_warning import Flow
from millgate.core.snapshot import PoolSnapshot
from millgate.core.state.attempt import Attempt
from millgate.core.state.engine import LEAST_WORK_S, Engine
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


def look_at_first(knowledge: Knowledge, engine: Engine, now: float) -> None:
    """Tell what has been learned of lengths and of this engine's permits how far those are that run.

    While little has ended, what runs is evidence too: answers and permits are longer than those that ended first.
    """
    if engine.permit_times.has_news:
        running = [each for each in engine.permits.values() if each.state is not State.DEPARTING]
        engine.permit_times.look([_share_so_far(each, engine, now) for each in running])
        knowledge.routes.pool_of(engine).capacity_forecast.ends_changed()
    if knowledge.output_length.has_news:
        _look_at_lengths(knowledge, now)


def _look_at_lengths(knowledge: Knowledge, now: float) -> None:
    lengths = knowledge.output_length
    running = [each for each in knowledge.attempts.values() if _is_answered(each)]
    lengths.look(
        [
            (each.arrival.model, each.lane.settings.name, each.arrival.max_tokens, _output_so_far(each, now))
            for each in running
        ]
    )
    for each in running:
        if lengths.follows_bound(each.arrival.model, each.lane.settings.name, each.arrival.max_tokens):
            _foresee_anew(knowledge, each)


def _foresee_anew(knowledge: Knowledge, attempt: Attempt) -> None:
    """Use `max_tokens` as the expected length of an answer that was admitted before lengths were learned."""
    arrival = attempt.arrival
    expected, _ = knowledge.output_length.estimate(
        arrival.model,
        attempt.tenant,
        attempt.lane.settings.name,
        arrival.max_tokens,
        attempt.prompt_tokens,
        arrival.min_tokens,
    )
    permit, engine = attempt.permit, attempt.engine
    if permit is None or engine is None or permit.foreseen_tokens == arrival.answers * expected:
        return
    permit.foreseen_anew(arrival.answers * expected)
    knowledge.note(permit, engine)


def _is_answered(attempt: Attempt) -> bool:
    return attempt.engine is not None and attempt.state is not State.DEPARTING


def _share_so_far(permit: Permit, engine: Engine, now: float) -> float:
    return (now - permit.admitted_at) / max(LEAST_WORK_S, engine.foreseen_s(permit))


def _output_so_far(attempt: Attempt, now: float) -> int:
    """Return how many tokens one of its answers has: what was counted of a stream, else by the engine's pace."""
    engine, permit = attempt.engine, attempt.permit
    if attempt.arrival.stream or engine is None or permit is None:
        return attempt.output_seen // attempt.arrival.answers
    decode_s = now - permit.admitted_at - permit.expected_ttft_s
    return int(max(0.0, decode_s) / max(LEAST_WORK_S, engine.pace_s))

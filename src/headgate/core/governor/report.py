"""Numbers out: builds the frozen snapshot from what the governor knows; changes nothing."""

from headgate.core.governor.endings import has_fresh_gauge
from headgate.core.governor.knowledge import Knowledge
from headgate.core.governor.records import Engine, Lane
from headgate.core.snapshot import EngineSnapshot, LaneSnapshot, RetrySnapshot, Snapshot
from headgate.core.words import FailureKind, Reason, Stage


def snapshot(knowledge: Knowledge, now: float) -> Snapshot:
    """Return everything at one instant."""
    places, entries = knowledge.places.standing(now)
    return Snapshot(
        now=now,
        draining=knowledge.draining,
        lanes=tuple(_lane(knowledge, lane, now) for lane in knowledge.lanes.values()),
        engines=tuple(_engine(engine, now) for engine in knowledge.engines.values()),
        retries=RetrySnapshot(
            attempts=knowledge.arrivals,
            labelled=knowledge.labelled,
            recognised=knowledge.recognised,
            early=knowledge.early,
            places=places,
            entries=entries,
            places_dropped=knowledge.places.dropped,
        ),
        good_output_tokens=knowledge.good_output_tokens,
        wasted_prompt_tokens=knowledge.wasted_prompt_tokens,
        wasted_output_tokens=knowledge.wasted_output_tokens,
        bytes_per_token=tuple(knowledge.prompt_bytes.ratios()),
        mean_output_tokens=tuple(knowledge.learned_output.means()),
    )


def _lane(knowledge: Knowledge, lane: Lane, now: float) -> LaneSnapshot:
    held = [knowledge.attempts[each.attempt] for each in lane.order]
    held_count = len(held)
    blocked = held_count > 0 or knowledge.running() >= knowledge.stream_limit() > 0
    return LaneSnapshot(
        name=lane.settings.name,
        held=held_count,
        held_tokens=lane.order.tokens,
        held_bytes=lane.order.body_bytes,
        oldest_held_s=max((now - each.arrived_at for each in held), default=0.0),
        expected_wait_s=knowledge.openings.wait_s(held_count + 1, now) if blocked else 0.0,
        running=lane.little.running,
        arrived=lane.arrived,
        admitted=lane.admitted,
        outcomes=tuple(lane.outcomes.items()),
        yields=tuple((cause, count) for cause, count in lane.causes.items() if isinstance(cause, Reason)),
        gone=tuple((cause, count) for cause, count in lane.causes.items() if isinstance(cause, Stage)),
        failures=tuple(
            (cause, count) for cause, count in lane.causes.items() if isinstance(cause, FailureKind)
        ),
        little=lane.little.read(now),
    )


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
        drain_per_s=engine.drains().per_s,
        expected_ttft_s=engine.expected_ttft_s(round(engine.work_prompt.mean)),
        expected_tpot_s=engine.service.tpot_s(gate.streams),
        expected_service_s=engine.expected_service_s(),
        abort_lag_s=engine.abort_lag.mean,
        ignores_hangups=engine.ignores,
        seen_running=seen.running if seen else None,
        seen_waiting=seen.waiting if seen else None,
        seen_kv_share=seen.kv_share if seen else None,
        seen_age_s=None if engine.seen is None else now - engine.seen.seen_at,
    )

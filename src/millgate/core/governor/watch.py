"""What the early warning, the adaptive limits and first lengths are told, now and then; nothing here decides about a request."""

from millgate.core.governor.knowledge import Attempts, Engines
from millgate.core.lifecycle import State
from millgate.core.limits.gate import LimitReading
from millgate.core.limits.signal import Signal
from millgate.core.sizing.output_length import OutputLength
from millgate.core.state.attempt import Attempt
from millgate.core.state.engine import GAUGE_STALE_S, LEAST_WORK_S, Engine, Permit


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
    if _prompts_pay(engine, signal, reading, now):
        reading = reading._replace(tpot_s=None)
    engine.gate.learns(reading)
    return engine.limit - before


def _prompts_pay(engine: Engine, signal: Signal, reading: LimitReading, now: float) -> bool:
    """Return whether a slow TPOT leaves the limit as it is: the pace of prompts answers for it, or the protected lane is quiet."""
    pace = engine.prompts.pace
    if pace is None:
        return False
    if pace.is_quiet(now):
        return True
    tpot_s = signal.tpot_s(reading.max_inflight, pace.protection.tpot_share)
    return tpot_s is not None and pace.observe(reading.window_s, tpot_s)


def _taught(permit: Permit, engine: Engine) -> Signal | None:
    """Return what learns from the pace of this permit, if that is its engine's."""
    return engine.signal if permit.is_timed and not permit.is_held_back else None


def grew(permit: Permit, engine: Engine, output_tokens: int, now: float) -> None:
    """Note how many tokens a stream has made by now."""
    signal = _taught(permit, engine)
    if signal is not None and permit.first_token_at is not None:
        signal.progressed(max(0, output_tokens - permit.looked_tokens), now - permit.looked_at)
    permit.grows(output_tokens, now)


def answered(permit: Permit, engine: Engine, output_tokens: int, now: float) -> None:
    """Note a whole answer: the tokens since the last look, and its mean time per token."""
    signal = _taught(permit, engine)
    if signal is None:
        return
    began_at = permit.began_unseen(now)
    per_stream = output_tokens / permit.answers
    tpot_s = (now - began_at) / (per_stream - 1) if per_stream >= 2 else 0.0
    signal.progressed(max(0, output_tokens - permit.looked_tokens), now - permit.looked_at)
    signal.finished(began_at, tpot_s)


def look_at_first(attempts: Attempts, lengths: OutputLength, now: float) -> None:
    """Tell what has been learned of lengths how far those are that run.

    While little has ended, what runs is evidence too: answers are longer than those that ended first.
    """
    if not lengths.has_news:
        return
    running = [
        (each, each.request.arrival.model, each.request.lane.settings.name, each.request.arrival.max_tokens)
        for each in attempts.by_number.values()
        if each.engine is not None and each.state is not State.DEPARTING
    ]
    lengths.look([(model, lane, bound, output_so_far(each, now)) for each, model, lane, bound in running])
    for each, model, lane, bound in running:
        if lengths.follows_bound(model, lane, bound):
            _foresee_anew(attempts.engines, lengths, each)


def _foresee_anew(engines: Engines, lengths: OutputLength, attempt: Attempt) -> None:
    """Use `max_tokens` as the expected length of an answer that was admitted before lengths were learned."""
    request, arrival = attempt.request, attempt.request.arrival
    expected, _ = lengths.estimate(
        arrival.model,
        request.tenant,
        request.lane.settings.name,
        arrival.max_tokens,
        request.prompt_tokens,
        arrival.min_tokens,
    )
    permit, engine = attempt.permit, attempt.engine
    if permit is None or engine is None or permit.foreseen_tokens == arrival.answers * expected:
        return
    permit.foreseen_anew(arrival.answers * expected)
    engines.note(permit, engine)


def output_so_far(attempt: Attempt, now: float) -> int:
    """Return how many tokens one of its answers has: what was counted of a stream, else by the engine's pace at the present load."""
    engine, permit, arrival = attempt.engine, attempt.permit, attempt.request.arrival
    if arrival.stream or engine is None or permit is None:
        return attempt.output_seen // arrival.answers
    decode_s = now - permit.admitted_at - permit.expected_ttft_s
    return int(max(0.0, decode_s) / max(LEAST_WORK_S, engine.service.tpot_s(engine.gate.streams)))

"""While little has ended, what runs is evidence too: answers and permits are longer than those that ended first.

Looked at once a second, when something has ended since and the first answers of a lane, or the first permits of an
engine, still count; later, and in a gate at rest, it costs nothing.
"""

from millgate.core.governor.knowledge import Knowledge
from millgate.core.lifecycle import State
from millgate.core.state.attempt import Attempt
from millgate.core.state.engine import LEAST_WORK_S, Engine
from millgate.core.state.permit import Permit


def look_at_first(knowledge: Knowledge, engine: Engine, now: float) -> None:
    """Tell what has been learned of lengths and of this engine's permits how far those are that run."""
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

"""When would a newcomer's first token come? Behind the permits that must end, and the prompts that must be read.

An engine is two service centres: a request needs a stream, and the time to read its prompt after all those before
it. The later of the two counts. Prompts are a sum of tokens over a speed, and each is counted once: those that wait
inside the engine delay the permit where the meter is full, and the first token after it where it is not.
"""

from array import array
from math import inf

from millgate.core.governor.streams import streams_of
from millgate.core.state.attempt import Attempt
from millgate.core.state.engine import LEAST_WORK_S, Engine


def expected_wait_s(draft: Attempt, place: int, now: float) -> float:
    """Return how long an attempt at this place is expected to wait: for permits, and for accounts where those bind."""
    route = draft.route
    if route.up[0].provider is None:
        return route.pool.capacity_forecast.wait_s(
            place, now, streams=streams_of(route.up[0].gate, draft.arrival)
        )
    accounts = [engine.provider for engine in route.up if engine.provider is not None]
    free = sum([engine.limit - engine.gate.streams for engine in route.up], 0)
    permit_s = 0.0 if place <= free else route.pool.capacity_forecast.wait_s(place - max(0, free), now)
    if len(accounts) < len(route.up):
        return permit_s
    return max(permit_s, min([account.wait_s(draft.sizes(), now, place) for account in accounts]))


def forecast(draft: Attempt, place: int, now: float) -> tuple[float, float, float]:
    """Return the wait for a permit at this place (1 is next), the same nine times in ten, and the time to first token after it.

    The first is what is expected, in seconds from now. The sum of the others is when the first token has come nine times
    in ten.
    """
    engines, capacity_forecast = draft.route.up, draft.route.pool.capacity_forecast
    ttft_s = min([engine.expected_ttft_s(draft.prompt_tokens, now) for engine in engines])
    paced_s = paced_wait_s(draft, draft.queue.order.ahead_of(draft), now)
    if waits_for_pace_alone(draft, place):
        return paced_s, paced_s, ttft_s
    if not _is_metered(engines):
        wait_s = max(paced_s, expected_wait_s(draft, place, now))
        return wait_s, wait_s + capacity_forecast.upper_s(place), ttft_s
    permit_s = late_s = 0.0
    beyond = place - _free_streams(engines)
    if beyond > 0:
        permit_s = capacity_forecast.wait_s(beyond, now, prompts=False)
        late_s = capacity_forecast.upper_s(beyond, prompts=False)
    reading_s, first_s = _reading(draft, _tokens_of(draft, place - 1), engines, now)
    surely = _surely(engines)
    ttft_s *= surely
    upper_s = max(permit_s + late_s, reading_s + first_s * surely - ttft_s, paced_s)
    return max(permit_s, reading_s, paced_s), upper_s, ttft_s


def waits_for_pace_alone(draft: Attempt, place: int) -> bool:
    """Return whether its lane is paced while streams are free for it at this place (1 is next)."""
    return draft.queue.paced_until() > -inf and place <= _free_streams(draft.route.up)


def paced_wait_s(draft: Attempt, ahead: float, now: float) -> float:
    """Return how long its prompt waits for those that its lane has ahead of it; 0 where its lane is not paced.

    Those are taken to be as long as its own, and to be spread over its engines.
    """
    lane, waits, contended = draft.lane.settings.name, [], draft.queue.is_contended()
    for engine in draft.route.up:
        apart_s = engine.spacing_s(lane, draft.prompt_tokens, contended=contended) / len(draft.route.up)
        waits.append(max(0.0, engine.prompts.opens_at(lane, contended=contended) - now) + ahead * apart_s)
    return min(waits, default=0.0)


def wait_behind_s(
    draft: Attempt, queued: int, away_s: float, first: "array[int]", share: float, work_s: float, now: float
) -> tuple[float, float]:
    """Return how long it is expected to wait behind the queued and the away, and how much longer reading may take.

    So many are queued; the work of the clients that are away is `away_s`, that of all `work_s`, in seconds of permits, and `first` and `share` are as
    in `capacity_forecast`. Prompts of the away are taken to be as large a part of it as of usual work. The second is nine times in ten.
    """
    engines, capacity_forecast = draft.route.up, draft.route.pool.capacity_forecast
    if not _is_metered(engines):
        return capacity_forecast.wait_behind_s(first, share, work_s, 0, now), 0.0
    permit_s = capacity_forecast.wait_behind_s(first, share, work_s, _free_streams(engines), now)
    usual, prompt_tokens = engines[0], engines[0].work_prompt.mean
    away = away_s / max(LEAST_WORK_S, usual.permit_s(prompt_tokens, usual.work_output.mean))
    tokens = _tokens_of(draft, queued) + away * prompt_tokens
    reading_s, _ = _reading(draft, tokens, engines, now)
    if reading_s <= permit_s:
        return permit_s, 0.0
    return reading_s, reading_s * (_surely(engines) - 1.0)


def _surely(engines: tuple[Engine, ...]) -> float:
    """Return how many times as long as predicted reading takes nine times in ten at most."""
    return 1.0 + sum([engine.reading.upper_share for engine in engines], 0.0) / len(engines)


def _is_metered(engines: tuple[Engine, ...]) -> bool:
    """Return whether prompts may be what these engines' permits wait for."""
    return all(engine.gate.prefill_limit is not None and engine.provider is None for engine in engines)


def _free_streams(engines: tuple[Engine, ...]) -> int:
    """Return how many streams are free and of use: none of an engine whose memory is full.

    Memory counts as it is now. A line does not need all of its own at once, for the first have ended before the last begin.
    """
    free = 0
    for engine in engines:
        gate = engine.gate
        usual_tokens = engine.work_prompt.mean + engine.work_output.mean
        if gate.kv_limit is None or gate.kv_tokens + usual_tokens <= gate.kv_limit:
            free += max(0, engine.limit - gate.streams)
    return free


def _reading(draft: Attempt, tokens: float, engines: tuple[Engine, ...], now: float) -> tuple[float, float]:
    """Return how long so many tokens of others keep it from a permit, and how long its first token takes then.

    What the engines have not read yet is ahead as well; the first token comes behind what the meter lets in.
    """
    own, first = draft.prompt_tokens, engines[0]
    unread = own + tokens
    room = 0
    tokens_per_s = 0.0
    for engine in engines:
        unread += engine.unread_tokens(now)
        room += engine.gate.prefill_limit or 0
        per_token_s = engine.reading.per_token_s
        tokens_per_s += 1.0 / per_token_s if per_token_s > 0.0 else inf
    inside = min(unread, max(room, own))
    outside_s = (unread - inside) / tokens_per_s
    if unread > inside:
        # The meter has room again when another request's first token is out, which takes more than the reading.
        outside_s += first.service.ttft_s(0)
    return outside_s, first.service.ttft_s(max(own, inside / len(engines)))


def _tokens_of(draft: Attempt, ahead: int) -> float:
    """Return how many prompt tokens the first so many in the line have.

    The tokens of all queued requests are known; a part of the line has its part of them. Where the shortest goes first,
    those ahead are as long as what is admitted.
    """
    pool = draft.route.pool
    if not ahead or not pool.queued_count:
        return 0.0
    if draft.queue.offered is not None:
        return ahead * draft.route.up[0].work_prompt.mean
    return pool.queued_prompt_tokens * ahead / pool.queued_count

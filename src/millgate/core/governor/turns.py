"""Whose turn is it? Between lanes by `LaneShares`, inside a queue by its order; windows may hold a queue back.

With one lane and one queue, the usual case, every answer is the queue's own.
"""

from collections.abc import Sequence
from math import ceil

from millgate.core.lanes import LaneShares
from millgate.core.state.attempt import Attempt
from millgate.core.state.engine import Engine
from millgate.core.state.pool import LaneQueue, Pool, Route


def ahead_of(draft: Attempt, now: float) -> int:
    """Return how many would be admitted before this newcomer; beyond its own queue this is an estimate.

    Of other lanes: all that wait in a smaller band, and in the same band as many as it takes that lane to run as
    much for its share as this one will by then; none of a lane whose prompts have to wait for their pace or part.
    """
    pool = draft.route.pool
    if not pool.queued_count:
        return 0
    own = draft.queue.order.ahead_of(draft)
    if pool.shares is None:
        return own + pool.queued_count - len(draft.queue.order)
    own += _of_other_routes(draft)
    lane = draft.lane.settings
    reached = (pool.shares.running(lane.name) + own) / lane.share
    return own + sum(
        [_goes_before(pool.shares, queue, lane.band, reached) for queue in _rivals(draft, now)], 0
    )


def _of_other_routes(draft: Attempt) -> int:
    return sum(
        [
            len(queue.order)
            for queue in draft.route.pool.queues
            if queue.settings.name == draft.lane.settings.name and queue is not draft.queue
        ]
    )


def _rivals(draft: Attempt, now: float) -> list[LaneQueue]:
    own = draft.lane.settings.name
    return [
        queue
        for queue in draft.route.pool.queues
        if queue.settings.name != own and len(queue.order) and queue.paced_until(contended=True) <= now
    ]


def _goes_before(shares: LaneShares, queue: LaneQueue, band: int, reached: float) -> int:
    lane, waiting = queue.settings, len(queue.order)
    if lane.band != band:
        return waiting if lane.band < band else 0
    return min(waiting, max(0, ceil(reached * lane.share - shares.running(lane.name))))


def may_go(draft: Attempt, ahead: int, now: float) -> bool:
    """Return whether it is this newcomer's turn, as far as lanes and windows are concerned."""
    pool, window = draft.route.pool, draft.queue.window
    if (
        window is not None
        and window.newcomer_goes_at(draft.route.free(), now, latest_start(draft, draft.route.up)) > now
    ):
        return False
    shares = pool.shares
    if shares is None or (shares.lends_all and not pool.queued_count):
        return ahead == 0
    if len(draft.queue.order) and draft.queue.order.ahead_of(draft):
        return False
    waiting = [queue for queue in pool.queues if len(queue.order) and queue.paced_until() <= now]
    lanes = {queue.settings.name: None for queue in _within_part([*waiting, draft.queue], now)}
    return _chosen(pool, shares, list(lanes)) == draft.lane.settings.name


def latest_start(draft: Attempt, engines: tuple[Engine, ...]) -> float:
    """Return when it must start for its first token to come in time, on the one of these that reads fastest."""
    return draft.deadline - min([engine.service.ttft_s(draft.prompt_tokens) for engine in engines])


def limit_of(pool: Pool) -> int:
    """Return how many streams may run, over those of its engines that are up."""
    return sum([engine.limit for engine in pool.engines if engine.up])


def _chosen(pool: Pool, shares: LaneShares, lanes: Sequence[str]) -> str | None:
    limit = limit_of(pool)
    free = limit - sum([engine.gate.streams for engine in pool.engines if engine.up], 0)
    return shares.choose(lanes, free, limit)


def next_queued(
    pools: Sequence[Pool], attempts: dict[int, Attempt], blocked: list[Route], now: float
) -> Attempt | None:
    """Return the next request over all queues whose route is not blocked, None when none may go.

    Routes whose lanes may not borrow a stream now are added to `blocked`.
    """
    for pool in pools:
        if not pool.queued_count:
            continue
        queues = [queue for queue in pool.queues if _is_ready(queue, blocked, now)]
        if queues and pool.shares is not None:
            queues = _within_part(queues, now)
            lane = _chosen(pool, pool.shares, list({each.settings.name: None for each in queues}))
            if lane is None:
                blocked += [queue.route for queue in queues]
                continue
            queues = [queue for queue in queues if queue.settings.name == lane]
        if queues:
            return _oldest_head(attempts, queues)
    return None


def _within_part(queues: list[LaneQueue], now: float) -> list[LaneQueue]:
    """Return those whose lanes have not read more than their part; all where no lane would be left."""
    return [queue for queue in queues if queue.paced_until(contended=True) <= now] or queues


def _is_ready(queue: LaneQueue, blocked: Sequence[Route], now: float) -> bool:
    if not len(queue.order) or queue.route in blocked or queue.paced_until() > now:
        return False
    return queue.window is None or queue.window.is_open(queue.route.free(), now)


def _oldest_head(attempts: dict[int, Attempt], queues: Sequence[LaneQueue]) -> Attempt:
    heads = [head for queue in queues if (head := queue.order.head()) is not None]
    chosen = heads[0]
    if len(heads) > 1:
        chosen = min(heads, key=lambda head: (head.first_seen, head.arrival_number))
    return attempts[chosen.attempt]

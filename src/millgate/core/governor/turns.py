"""Whose turn is it? Between lanes by `LaneShares`, inside a queue by its order; with one lane and one queue, the usual case, by that alone."""

from collections.abc import Sequence
from math import ceil

from millgate.core.lanes import LaneShares
from millgate.core.queues.base import Queued
from millgate.core.state.attempt import Request
from millgate.core.state.pool import LaneQueue, Pool, Route


def ahead_of(request: Request, now: float) -> int:
    """Return how many would be admitted before this newcomer; beyond its own queue this is an estimate.

    Of other lanes: all that wait in a smaller band, and in the same band as many as it takes that lane to run as
    much for its share as this one will by then; none of a lane whose prompts have to wait for their pace or part.
    """
    pool = request.route.pool
    if not pool.queued_count:
        return 0
    own = request.queue.order.ahead_of(request)
    if pool.shares is None:
        return own + pool.queued_count - len(request.queue.order)
    lane = request.lane.settings
    others = [queue for queue in pool.queues if queue is not request.queue]
    own += sum([len(queue.order) for queue in others if queue.settings.name == lane.name], 0)
    reached = (pool.shares.running(lane.name) + own) / lane.share
    for queue in others:
        if queue.settings.name == lane.name or not len(queue.order):
            continue
        if queue.paced_until(contended=True) <= now and not queue.waits_for_others(now):
            own += _goes_before(pool.shares, queue, lane.band, reached)
    return own


def _goes_before(shares: LaneShares, queue: LaneQueue, band: int, reached: float) -> int:
    lane, waiting = queue.settings, len(queue.order)
    if lane.band != band:
        return waiting if lane.band < band else 0
    return min(waiting, max(0, ceil(reached * lane.share - shares.running(lane.name))))


def may_go(request: Request, ahead: int, now: float) -> bool:
    """Return whether it is this newcomer's turn, as far as lanes and windows are concerned."""
    pool, window = request.route.pool, request.queue.window
    if (
        window is not None
        and window.newcomer_goes_at(request.route.free(), now, request.latest_start()) > now
    ):
        return False
    shares = pool.shares
    if shares is None or (shares.lends_all and not pool.queued_count):
        return ahead == 0
    if len(request.queue.order) and request.queue.order.ahead_of(request):
        return False
    waiting = [q for q in pool.queues if _is_ready(q, [], now, {}) and not q.waits_for_others(now)]
    lanes = {queue.settings.name: None for queue in _within_part([*waiting, request.queue], now)}
    return _chosen(pool, shares, list(lanes)) == request.lane.settings.name


def lets_pass(request: Request) -> bool:
    """Return whether others may go while this one cannot: not in a lane that bounds overtakes, nor where batches form."""
    return request.lane.settings.max_overtakes is None and request.queue.window is None


def may_pass(request: Request) -> bool:
    """Return whether this newcomer may have what all that wait before it can make no use of, as far as lanes and windows are concerned."""
    pool, lane = request.route.pool, request.lane.settings.name
    return lets_pass(request) and (pool.shares is None or _chosen(pool, pool.shares, [lane]) == lane)


def limit_of(pool: Pool) -> int:
    """Return how many streams may run, over those of its engines that are up."""
    return sum([engine.limit for engine in pool.engines if engine.up])


def _chosen(pool: Pool, shares: LaneShares, lanes: Sequence[str]) -> str | None:
    # An engine may run more than its limit, which has fallen: that takes no stream of another engine.
    free = sum([max(0, engine.limit - engine.gate.streams) for engine in pool.engines if engine.up], 0)
    return shares.choose(lanes, free, limit_of(pool))


def next_queued(
    pools: Sequence[Pool], blocked: list[Route], now: float, passed_over: dict[int, None]
) -> int | None:
    """Return the attempt that is next over all queues whose route is not blocked, None when none may go.

    Those that were `passed_over` are left out, and take no lane's turn. Routes whose lanes may not borrow a stream now are added
    to `blocked`.
    """
    for pool in pools:
        if not pool.queued_count:
            continue
        queues = [queue for queue in pool.queues if _is_ready(queue, blocked, now, passed_over)]
        if queues and pool.shares is not None:
            queues = _within_part(queues, now)
            lane = _chosen(pool, pool.shares, list({each.settings.name: None for each in queues}))
            if lane is None:
                blocked += [queue.route for queue in queues]
                continue
            queues = [queue for queue in queues if queue.settings.name == lane]
        if queues:
            heads = [head for queue in queues if (head := _head(queue, passed_over)) is not None]
            return min(heads, key=lambda head: (head.first_seen, head.arrival_number)).attempt
    return None


def _within_part(queues: list[LaneQueue], now: float) -> list[LaneQueue]:
    """Return those whose lanes have not read more than their part; all where no lane would be left."""
    return [queue for queue in queues if queue.paced_until(contended=True) <= now] or queues


def _is_ready(queue: LaneQueue, blocked: list[Route], now: float, passed_over: dict[int, None]) -> bool:
    if _head(queue, passed_over) is None or queue.route in blocked or queue.paced_until() > now:
        return False
    return queue.window is None or queue.window.is_open(queue.route.free(), now)


def _head(queue: LaneQueue, passed_over: dict[int, None]) -> Queued | None:
    """Return the first of this queue that is not passed over, None without one."""
    if not passed_over:
        return queue.order.head()
    for queued in queue.order:
        if queued.attempt not in passed_over:
            return queued
    return None

"""A second try: an engine failed a request before it had anything of it, and another engine may have it.

Only then is it certain that nothing is computed twice and that no client has had a byte (design section 4). An engine
that has no room, does not know the model or the path, or refuses the gate's own key, has nothing of it either. There is
one second try. It gives its permit back and waits in its lane, by its own `first_seen`, for the engines of its route
without the one that failed it: a *detour*. With room there and an empty queue it is admitted in the same breath. Where
its lane queues no more, or no other engine serves the model, there is no second try. What may be queued, and what is in
time, the door's own rules say.
"""

from collections.abc import Iterable

from millgate.core.decisions import Decision, Queue
from millgate.core.events import Failed
from millgate.core.governor.assess import may_wait_again, unfit
from millgate.core.governor.commit import dispatch, queue
from millgate.core.governor.knowledge import Knowledge
from millgate.core.governor.placement import is_in_time, roomy_engine
from millgate.core.governor.turns import ahead_of
from millgate.core.lifecycle import State
from millgate.core.state.attempt import Attempt, Request
from millgate.core.state.engine import Engine
from millgate.core.state.lane import Lane
from millgate.core.state.pool import Route, Routes
from millgate.core.words import Sent


def detour_after(knowledge: Knowledge, attempt: Attempt, event: Failed, now: float) -> Request | None:
    """Return the request as it may be tried once more, None when it has failed for good; changes nothing."""
    failed = attempt.failed_by
    if event.sent is not Sent.NONE or attempt.state is not State.PREFILL or attempt.tried is not None:
        return None
    assert failed is not None
    request = attempt.request.moved(_detour(knowledge.engines.routes, attempt.request, failed))
    if unfit(request, now) is not None:
        return None
    placement = knowledge.engines.placement
    roomy = roomy_engine(placement, request, placement.held(request.marks, request.prompt_tokens), now)
    if roomy is not None and not is_in_time(roomy[0], request, roomy[1], now):
        return None
    # A queued request may be given that room first, and this one waits in its place (INV-5).
    if roomy is not None and not knowledge.attempts.queued_count:
        return request
    queued_until = _queued_until(request)
    is_possible = now < request.latest_start() and (queued_until is None or now < queued_until)
    return request if is_possible and may_wait_again(knowledge, request) else None


def try_again(knowledge: Knowledge, attempt: Attempt, request: Request, now: float) -> list[Decision]:
    """Take the attempt, whose permit has just been given back, out of its end: admit it on the detour, or hold it."""
    # What was to fall due in its first try would mean that it has waited too long.
    knowledge.attempts.wakes.forget(request.attempt)
    knowledge.attempts.take_back(attempt, request)
    place = ahead_of(request, now) + 1
    queue(knowledge.attempts, attempt, _queued_until(request), now)
    decisions = dispatch(knowledge, now)
    if attempt.state is State.QUEUED:
        wait_s = request.route.pool.capacity_forecast.wait_s(place, now)
        decisions.append(Queue(request.attempt, place, wait_s, request.classed))
    return decisions


def detours_turned(lanes: Iterable[Lane], routes: Routes) -> None:
    """Read anew which engines of the detours are up."""
    for lane in lanes:
        for route in lane.queues:
            if route not in routes.every:
                route.turned()


def _detour(routes: Routes, request: Request, failed: Engine) -> Route:
    """Return the request's route of now without this engine; one object per lane, so that a lane's queues stay few.

    A change of the configuration builds all routes anew, and the queues of the old ones are looked at no more.
    """
    route = routes.of_arrival(request.arrival, request.lane.settings)
    others = tuple(engine for engine in route.engines if engine is not failed)
    readers = tuple(engine for engine in route.readers if engine is not failed)
    for known in request.lane.queues:
        is_it = tuple(known.engines) == others and known.readers == readers and known.pool is route.pool
        if is_it and known not in routes.every:
            return known
    detour = Route(others, route.pool, readers)
    detour.turned()
    return detour


def _queued_until(request: Request) -> float | None:
    """Return when it has waited as long as its lane and its client let it, from its arrival on."""
    wait_s = request.most_wait_s
    return None if wait_s is None else request.arrived_at + wait_s

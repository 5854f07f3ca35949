"""A second try: an engine failed a request before it had anything of it, and another engine may have it.

Only then is it certain that nothing is computed twice and that no client has had a byte (design section 4). There is
one second try. It gives its permit back and waits in its lane, by its own `first_seen`, for the engines of its route
without the one that failed it: a *detour*. With room there and nobody waiting it is admitted in the same breath. Where its
lane queues no more, or no other engine serves the model, there is no second try.
"""

from collections.abc import Iterable

from millgate.core.decisions import Decision, Queue
from millgate.core.events import Failed
from millgate.core.governor.assess import fit_somewhere, most_wait_s, price
from millgate.core.governor.commit import dispatch
from millgate.core.governor.knowledge import Knowledge
from millgate.core.governor.pools import Routes
from millgate.core.governor.turns import ahead_of, latest_start
from millgate.core.lifecycle import State
from millgate.core.state.attempt import Attempt
from millgate.core.state.engine import Engine
from millgate.core.state.lane import Lane
from millgate.core.state.pool import Route
from millgate.core.words import Sent


def detour_after(knowledge: Knowledge, attempt: Attempt, event: Failed, now: float) -> Route | None:
    """Return by which route the attempt may be tried once more, None when it has failed for good; changes nothing."""
    failed = attempt.engine
    if event.sent is not Sent.NONE or attempt.state is not State.PREFILL or attempt.tried is not None:
        return None
    assert failed is not None
    detour = _detour(knowledge.routes, attempt, failed)
    if not fit_somewhere(detour.up, attempt):
        return None
    roomy = knowledge.roomy_engine(attempt, detour.up, now)
    if roomy is not None and now + roomy[1] > attempt.deadline:
        return None
    # Whoever waits may be given that room first, and this one waits in its place (INV-5).
    is_next = roomy is not None and not knowledge.queued_count
    return detour if is_next or _may_wait(knowledge, attempt, detour, now) else None


def try_again(knowledge: Knowledge, attempt: Attempt, detour: Route, now: float) -> list[Decision]:
    """Take the attempt, whose permit has just been given back, out of its end: admit it on the detour, or hold it."""
    attempt.turned_back(detour, _give_up_at(attempt, detour), now)
    attempt.may_wait_until(_impatient_at(attempt))
    attempt.lane.opens(attempt.queue)
    # What was to fall due in its first try would mean that it has waited too long.
    knowledge.wakes.forget(attempt.attempt)
    knowledge.take_in(attempt)
    price(attempt)
    place = ahead_of(attempt, now) + 1
    knowledge.enqueue(attempt, now)
    knowledge.wake_at(attempt.give_up_at, attempt.attempt)
    decisions = dispatch(knowledge, now)
    if attempt.state is State.QUEUED:
        wait_s = detour.pool.capacity_forecast.wait_s(place, now)
        decisions.append(Queue(attempt.attempt, place, wait_s, attempt.classed))
    return decisions


def detours_turned(lanes: Iterable[Lane], routes: Routes) -> None:
    """Read anew which engines of the detours are up."""
    for lane in lanes:
        for route in lane.queues:
            if route not in routes.every:
                route.turned()


def _detour(routes: Routes, attempt: Attempt, failed: Engine) -> Route:
    """Return the attempt's route of now without this engine; one object per lane, so that a lane's queues stay few.

    A change of the configuration builds all routes anew, and the queues of the old ones are looked at no more.
    """
    arrival = attempt.arrival
    route = (
        routes.of(arrival.model) if arrival.engine is None else routes.pinned(arrival.engine, arrival.model)
    )
    others = tuple(engine for engine in route.engines if engine is not failed)
    for known in attempt.lane.queues:
        if tuple(known.engines) == others and known.pool is route.pool and known not in routes.every:
            return known
    detour = Route(others, route.pool)
    detour.turned()
    return detour


def _may_wait(knowledge: Knowledge, attempt: Attempt, detour: Route, now: float) -> bool:
    """Return whether the lane's queue takes it (INV-5) and it may still begin in time."""
    lane = attempt.lane
    settings = lane.settings
    most_tokens, tokens = settings.max_queue_tokens, attempt.prompt_tokens + attempt.output_tokens
    most = knowledge.max_queued if settings.max_queue is None else settings.max_queue
    return (
        not knowledge.draining
        and knowledge.queued_count < knowledge.max_queued
        and lane.queued < most
        and (most_tokens is None or lane.queued_tokens + tokens <= most_tokens)
        and lane.queued_bytes + attempt.body_bytes <= settings.max_queue_bytes
        and now < _give_up_at(attempt, detour)
    )


def _impatient_at(attempt: Attempt) -> float | None:
    """Return when it has waited as long as its lane and its client let it, from its arrival on."""
    wait_s = most_wait_s(attempt)
    return None if wait_s is None else attempt.arrived_at + wait_s


def _give_up_at(attempt: Attempt, detour: Route) -> float:
    """Return when waiting becomes useless: later no first token would come in time, or its client waits no longer."""
    start = latest_start(attempt, detour.up)
    impatient_at = _impatient_at(attempt)
    return start if impatient_at is None else min(start, impatient_at)

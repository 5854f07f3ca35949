"""A request without room lets others go before it: which others may, depends on what it is without.

A head without room stops what waits for the same engines, and not what other engines can take. Those of a queue that are out for the
same reason are not asked one by one: what is done at each event would grow with the square of what waits.
"""

from collections.abc import Callable
from itertools import islice
from math import inf
from typing import Final

from millgate.core.governor.adapter_turns import AdapterTurns
from millgate.core.governor.knowledge import Attempts
from millgate.core.governor.placement import waits_for
from millgate.core.governor.turns import lets_pass
from millgate.core.routing.prefix_index import Held
from millgate.core.routing.working_set import MOST_PASSED_OVER
from millgate.core.state.attempt import Attempt, Request
from millgate.core.state.engine import Engine
from millgate.core.state.pool import Route, Routes
from millgate.core.tickets import TOLERANCE_S

MOST_LOOKED_AT: Final = 1_000
"""So many of a queue are looked at; where all of them are out, what stands behind them waits, too."""


class Look:
    """What one look at the queues has found: routes that are `blocked`, who is `passed_over`, so `many` of them one by one, and the engines `kept` for them."""

    def __init__(self, attempts: Attempts, held: dict[int, None]) -> None:
        self._attempts = attempts
        self.blocked: list[Route] = []
        self.passed_over = held
        self.kept: dict[int, int] = {}
        self.many = 0

    def passes(self, attempt: Attempt, until: float, now: float) -> None:
        """Let others go before this attempt, and look at it again then."""
        self.passed_over[attempt.request.attempt] = None
        self.many += 1
        self._attempts.look_again(attempt, until, now)

    def passes_alike(self, head: Request, is_out: Callable[[Attempt], bool]) -> None:
        """Let others go before all in its queue that are out as it is; where too many would have to be looked at, none that waits for its route."""
        first, by_number = islice(head.queue.order, MOST_LOOKED_AT), self._attempts.by_number
        found = {each.attempt: None for each in first if is_out(by_number[each.attempt])}
        if len(found) < MOST_LOOKED_AT:
            self.passed_over |= found
        else:
            self.blocked.append(head.route)

    def leaves_to_others(self) -> bool:
        """Return whether a later one may go: some were passed over, or engines that share work with those of a blocked route may still take others."""
        for route in self.blocked:
            if not self.passed_over and len(route.up) < len(route.pool.engines):
                return any(each.up and each.number not in self.kept for each in route.pool.engines)
        return bool(self.passed_over)


def is_without_room(look: Look, attempts: Attempts, attempt: Attempt, held: Held, now: float) -> None:
    """Let others go before this one: which may depends on what it is without."""
    request, engines, kept = attempt.request, attempts.engines, look.kept
    placement, route = engines.placement, request.route
    if placement.is_kept_out(request, held, now):
        look.passes(attempt, now + engines.working_sets.next_room_s(now), now)
        if look.many >= MOST_PASSED_OVER:
            # Nor are the others asked that may open a session: they were turns of no live one when they came.
            look.passes_alike(request, lambda each: bool(each.request.marks) and each.session is None)
    elif placement.adapter_turns.is_out(request):
        look.passes(attempt, now + TOLERANCE_S, now)
        look.passed_over |= _without_slot(attempts, placement.adapter_turns, request, now)
        if not lets_pass(request):
            look.blocked.append(route)
    else:
        mark_blocked(engines.routes, request, now)
        wake_for_opening(attempts, attempt, now)
        kept |= waits_for(placement, request, now)
        if not lets_pass(request) or all(each.number in kept for each in route.up):
            look.blocked.append(route)
        else:
            look.passes_alike(
                request, lambda each: not waits_for(placement, each.request, now).keys() - kept.keys()
            )


def _without_slot(attempts: Attempts, turns: AdapterTurns, head: Request, now: float) -> dict[int, None]:
    """Return this request and all in its queue that have no slot for their adapter either: they need not be asked one by one."""
    found: dict[int, None] = {}
    is_out: dict[str, bool] = {}
    for queued in head.queue.order:
        request = attempts.by_number[queued.attempt].request
        model = request.arrival.model
        if model not in is_out:
            is_out[model] = turns.is_out(request)
            if is_out[model]:
                turns.wants(request, 0.0, now)
        if is_out[model]:
            found[queued.attempt] = None
    return found


def mark_blocked(routes: Routes, request: Request, now: float) -> None:
    """Note that a request was not let in although streams may be free: a gate is full in another meter, and drains as such; not where its pace keeps it out."""
    lane, unread = request.lane.settings.name, request.unread_tokens
    for engine in request.route.up:
        is_paced = engine.prompts.is_on and engine.opens_at(lane, unread) > now
        if not is_paced and engine.became_full(now):
            routes.pool_of(engine).capacity_forecast.rate_changed()


def wake_for_opening(attempts: Attempts, attempt: Attempt, now: float) -> None:
    """Look again when an account has room for this request, or an engine may be given its prompt: no permit has to end for that."""
    queued = attempt.request
    waits = [each for engine in queued.route.up if 0.0 < (each := _opens_in_s(engine, queued, now)) < inf]
    if waits:
        attempts.look_again(attempt, now + min(waits), now)


def _opens_in_s(engine: Engine, queued: Request, now: float) -> float:
    account_s = 0.0 if engine.provider is None else engine.provider.wait_s(queued.sizes(), now)
    return max(account_s, engine.opens_at(queued.lane.settings.name, queued.unread_tokens) - now)

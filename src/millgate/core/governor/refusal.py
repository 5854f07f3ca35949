"""The decision to refuse: the hint that goes with each reason, and whether to come back at all."""

from math import inf, isfinite
from typing import Final

from millgate.core.decisions import Yield
from millgate.core.fast_records import make_yield
from millgate.core.governor.promises import (
    DRAINING_HINT_S,
    far_hint_s,
    no_engine_hint_s,
    promise,
)
from millgate.core.governor.quota_lines import Behind
from millgate.core.state.attempt import Attempt
from millgate.core.state.totals import Totals
from millgate.core.tickets import LONGEST_HINT_S, SOONEST_RETURN_S
from millgate.core.words import DeadlineFrom, Reason

# These lie with one tenant: the hint is its own, and it gets no appointment in the line of engines.
OF_ONE_TENANT: Final = frozenset((Reason.QUOTA, Reason.TENANT_LIMIT, Reason.RETRY_BUDGET))
_UNPROMISED: Final = OF_ONE_TENANT | {Reason.TOO_LARGE, Reason.DRAINING, Reason.NO_ENGINE}


def refusal(
    totals: Totals,
    draft: Attempt,
    reason: Reason,
    now: float,
    value: float,
    bound: float,
    wait_s: float = 0.0,
) -> Yield:
    """Return the decision to refuse this attempt, with a hint that is true.

    `wait_s` is until its tenant may have it, for reasons that lie with the tenant alone.
    """
    if reason in _UNPROMISED:
        return _without_promise(totals, draft, reason, value, bound, wait_s)
    hint_s, by_s = promise(totals, draft, now)
    in_time = _is_in_time(draft, hint_s, by_s, now) or _begins_anew_at(draft, hint_s, now)
    if reason is Reason.TOO_LATE and _never_in_time(draft):
        in_time = False
    return make_yield(
        draft.attempt,
        reason,
        hint_s,
        retry=in_time,
        value=value,
        bound=bound,
        first_seen=draft.first_seen,
        classed=draft.classed,
    )


def in_line(totals: Totals, decision: Yield, behind: Behind) -> Yield:
    """Return the refusal by a quota with the time at which it has enough for all that were told before, too.

    Beyond the longest hint that time is a guess, and clients are spread evenly up to it.
    """
    if not decision.retry:
        return decision
    hint_s = max(decision.retry_after_s, behind.wait_s)
    if hint_s > LONGEST_HINT_S:
        hint_s = far_hint_s(totals)
    return decision._replace(retry_after_s=hint_s, promised=behind.promised)


def _without_promise(
    totals: Totals, draft: Attempt, reason: Reason, value: float, bound: float, wait_s: float
) -> Yield:
    """Return the refusal of what no appointment in the line of engines would help."""
    hint_s, retry = _of_tenant(wait_s)
    if reason is Reason.TOO_LARGE:
        hint_s, retry = 0.0, False
    elif reason is Reason.DRAINING:
        hint_s, retry, value, bound = DRAINING_HINT_S, True, 0.0, 0.0
    elif reason is Reason.NO_ENGINE:
        hint_s, retry = no_engine_hint_s(totals), True
    return make_yield(
        draft.attempt,
        reason,
        hint_s,
        retry=retry,
        value=value,
        bound=bound,
        first_seen=draft.first_seen,
        classed=draft.classed,
    )


def _never_in_time(draft: Attempt) -> bool:
    """Return whether its prompt alone takes longer to read than it may wait in all, whenever it comes."""
    return draft.arrived_at + _reading_s(draft) > max(draft.deadline, draft.arrived_at + _span_s(draft))


def _span_s(draft: Attempt) -> float:
    """Return how long a first attempt of this kind may wait for its first token."""
    allowed_s, deadline_s = draft.arrival.time_allowed_s, draft.lane.settings.deadline_s
    return deadline_s if allowed_s is None else min(allowed_s, deadline_s)


def _of_tenant(wait_s: float) -> tuple[float, bool]:
    """Return the time to the next token as a hint, and whether coming back then is of use."""
    hint = min(max(SOONEST_RETURN_S, wait_s), LONGEST_HINT_S)
    return hint, wait_s <= LONGEST_HINT_S


def _is_in_time(draft: Attempt, hint_s: float, by_s: float, now: float) -> bool:
    """Return whether a return is of use: let in nine times in ten before a deadline that began with the first attempt.

    Where the deadline begins with each attempt, that there is such a time at all.
    """
    if draft.lane.settings.deadline_from is DeadlineFrom.ATTEMPT:
        return isfinite(by_s)
    if by_s == 0.0:
        return now + hint_s <= draft.lane_deadline
    return now + max(hint_s, by_s) + _reading_s(draft) <= draft.lane_deadline


def _begins_anew_at(draft: Attempt, hint_s: float, now: float) -> bool:
    """Return whether its deadline is over before any account is open for it: a return after both is a new request.

    A provider's long `retry-after` shuts an account for every client alike; no age helps, and none is held against it.
    """
    left_s = draft.lane_deadline - now
    if hint_s <= left_s or not draft.route.up:
        return False
    for engine in draft.route.up:
        if engine.provider is None or not left_s < engine.provider.wait_s(draft.sizes(), now) < inf:
            return False
    return True


def _reading_s(draft: Attempt) -> float:
    """Return how long its prompt takes to be read, on the engine that reads fastest."""
    least_s = inf
    for engine in draft.route.up:
        least_s = min(least_s, engine.service.ttft_s(draft.prompt_tokens))
    return least_s

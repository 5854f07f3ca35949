"""Whether hints were true: who came back when told, and was let in then."""

from typing import Final

from millgate.core.governor.promises import place_until
from millgate.core.governor.records import Attempt
from millgate.core.tickets import EARLY_S

# A hint is true if its client is admitted within the longer of these two: so much of the hint, or half a second.
# (What the hints are measured by; a client cannot tell less apart.)
_TRUE_WITHIN_SHARE: Final = 0.2
_TRUE_WITHIN_S: Final = 0.5


def judge_hint(draft: Attempt, now: float, *, admitted: bool) -> None:
    """Count the hint that this attempt has followed, once, as it is admitted or refused; one who had none is left out.

    Who is back before its promise has nearly come, or after its place has ended, was not back when told.
    """
    due_at, hint_s, back_at = draft.due_at, draft.hint_s, draft.arrived_at
    draft.due_at = None
    if due_at is None or not is_back_when_told(due_at, hint_s, back_at):
        return
    pool = draft.route.pool
    if admitted and now - max(due_at, back_at) <= max(_TRUE_WITHIN_S, _TRUE_WITHIN_SHARE * hint_s):
        draft.lane.hints_kept += 1
        pool.overtaking.was_kept(pool.capacity_forecast.per_s())
    else:
        draft.lane.hints_broken += 1
        if pool.places.is_as_expected(draft.told_share):
            pool.overtaking.was_broken(pool.capacity_forecast.per_s())


def is_back_when_told(due_at: float, hint_s: float, back_at: float) -> bool:
    """Return whether a return at `back_at` is neither early nor so late that its place has ended."""
    return due_at - min(EARLY_S, hint_s / 2) <= back_at <= place_until(due_at - hint_s, hint_s)

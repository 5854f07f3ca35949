"""What may be promised to whom: a hint is the time at which this client would be admitted if it came back then.

Its place is counted behind requests that wait and clients that were refused before and are expected back; the time of
that place is read off `capacity_forecast` (design section 4). Hints are spread so that equal promises do not come back as
one herd: a low-discrepancy sequence (multiples of the golden ratio, Weyl 1916) instead of dice, so that the core
stays deterministic.
"""

from array import array
from math import inf, sqrt
from typing import Final

from millgate.core.governor.forecast import expected_wait_s, paced_wait_s, wait_behind_s, waits_for_pace_alone
from millgate.core.governor.turns import ahead_of
from millgate.core.measure import UPPER_Z
from millgate.core.state.attempt import Attempt
from millgate.core.state.capacity_forecast import LISTED
from millgate.core.state.lane import Lane
from millgate.core.state.totals import Totals
from millgate.core.tickets import (
    KEPT_SHARE,
    LONGEST_HINT_S,
    SOONEST_RETURN_S,
    LineStanding,
    as_parts,
    kept_within_s,
    shortest_kept_s,
)

# A place beyond the longest hint is a guess; those clients are spread evenly from here up to it.
FAR_HINT_S = 45.0
# A client is asked to be back a little before its permit is expected: coming early costs a short hold, coming late
# costs an idle stream. Over a long line a little is a fifth of what it may be queued, so that a request is always queued
# when permits come sooner than foreseen.
_LEAD_S: Final = 0.2
_LEAD_SHARE: Final = 0.2 * KEPT_SHARE
# Where newcomers are queued they keep the streams busy while the promised are away: a later hint idles none, and is aimed
# for 39 in 40 instead of nine in ten (one-sided points of the normal law). Only a newcomer is told so, for only its
# coming shows that they come: after a burst no request fills the time.
_SURER: Final = 1.96 / UPPER_Z
# So much of the load of shorter work lengthens a wait. Short ones that are refused come by appointments of their own and
# pass none. And where all come by appointments, so much of it shortens the line that a longer one may join. Measured over
# 1.3 to 3 times the capacity (docs/policies/appointments-and-tickets.md): 1 promises less, and costs 1 % more good answers;
# 0.6 breaks 4 % of the promises.
_PASSING_SHARE: Final = 0.8
_LINE_SHARE: Final = 1.0 / 3.0
_GOLDEN: Final = 0.6180339887498949
# No engine: time for a health check and a restart to show.
_NO_ENGINE_HINT_S: Final = 5.0
DRAINING_HINT_S = 1.0


def spread(count: int) -> float:
    """Return the `count`-th number of the golden-ratio sequence, in [0, 1)."""
    return (count + 1) * _GOLDEN % 1.0


def promise(totals: Totals, draft: Attempt, now: float) -> tuple[float, float]:
    """Return when this client, refused now, would be admitted if it came back then, in [0.1, 60] s, and by when for sure.

    That is the time in seconds from now by which nine in ten clients that come then are admitted: infinite where it cannot
    be known, and 0 while nothing is measured, as an unmeasured spread refuses no request.
    """
    arrival, pool = draft.arrival, draft.route.pool
    appointments, capacity_forecast = pool.appointments, pool.capacity_forecast
    queued = ahead_of(draft, now)
    stand = appointments.stand(arrival.tenant, draft.lined_up_at, draft.arrival_number, now, LISTED)
    turn, share = stand.turn, stand.share
    place = 1 + queued + round(share * (stand.place - 1))
    work_s, first = stand.work_s, stand.first
    if queued:
        queued_s = pool.queued_work_s / pool.queued_count
        work_s += queued * queued_s
        # Queued requests are there: what counts by `share` is divided by it first.
        first = (array("I", (as_parts(queued_s / share),)) * min(queued, LISTED) + first)[:LISTED]
    if not draft.recognised:
        draft.stands_in(turn)
    measured = _is_measured(draft)
    late_s = capacity_forecast.upper_s(place, mean_is_known=False) if measured else 0.0
    if not draft.recognised and queues_newcomers(draft.lane):
        late_s *= _SURER
    wait_s, reading_late_s = 0.0, 0.0
    if not waits_for_pace_alone(draft, place):
        wait_s, reading_late_s = _wait_behind_s(draft, queued, stand, first, work_s, now)
    wait_s = max(wait_s, paced_wait_s(draft, place - 1, now))
    if measured:
        late_s = max(late_s, reading_late_s)
    if share < 1.0:
        absent_s = capacity_forecast.absence_s(stand.place - 1, share)
        late_s = sqrt(late_s * late_s + absent_s * absent_s)
    expected_s, late_s, by_s = _behind_shorter(draft, wait_s, late_s, now)
    if appointments.has_several(
        now
    ):  # and not `by_s`: a request that might still be in time is not refused for it
        expected_s *= 1.0 + pool.overtaking.share
    if not measured:
        by_s = 0.0
    if expected_s > LONGEST_HINT_S or not appointments.has_room_for(arrival.tenant, now):
        return far_hint_s(totals), by_s
    return min(max(SOONEST_RETURN_S, _aim_s(expected_s, late_s)), LONGEST_HINT_S), by_s


def _wait_behind_s(
    draft: Attempt, queued: int, stand: LineStanding, first: "array[int]", work_s: float, now: float
) -> tuple[float, float]:
    """Return the expected wait behind so much work, and how much longer nine in ten may wait for prompts."""
    if draft.route.up[0].provider is not None:
        return expected_wait_s(draft, 1 + queued + round(stand.share * (stand.place - 1)), now), 0.0
    if draft.queue.offered is not None and queues_newcomers(draft.lane):
        # Shorter prompts go first whenever they come: by those that wait the long would be promised what they never get.
        return draft.route.pool.capacity_forecast.wait_behind_s(first, stand.share, work_s, 0, now), 0.0
    return wait_behind_s(draft, queued, stand.work_s, first, stand.share, work_s, now)


def _behind_shorter(draft: Attempt, wait_s: float, late_s: float, now: float) -> tuple[float, float, float]:
    """Return a wait, its upper part and the time by which it is over, with what shorter work takes of them.

    Where newcomers are queued, shorter ones go first, and the wait itself is longer. Where none is, all come by
    appointments: there the wait is that of the line, and only its end is moved, so that the
    longer the line, the shorter a request must be to join it.
    """
    offered = draft.queue.offered
    if offered is None:
        return wait_s, late_s, _kept_until_s(wait_s, late_s)
    load = offered.load_below(draft.work_s, now, draft.route.pool.capacity_forecast.per_s())
    if not queues_newcomers(draft.lane):
        room = 1.0 - _LINE_SHARE * load
        return wait_s, late_s, _kept_until_s(wait_s, late_s) / room if room > 0.0 else inf
    room = 1.0 - _PASSING_SHARE * load
    if room <= 0.0:
        return inf, late_s, inf
    return wait_s / room, late_s / room, _kept_until_s(wait_s, late_s) / room


def _kept_until_s(wait_s: float, late_s: float) -> float:
    return wait_s + max(late_s, kept_within_s(wait_s))


def queues_newcomers(lane: Lane) -> bool:
    """Return whether a request that was promised nothing may wait in this lane."""
    settings = lane.settings
    return settings.max_queue != 0 and settings.max_wait_s != 0.0


def _is_measured(draft: Attempt) -> bool:
    """Return whether its engines' spread is measured: an unmeasured spread never lengthens a hint."""
    return all(engine.provider is None and engine.drain.spread_is_measured for engine in draft.route.up)


def _aim_s(expected_s: float, late_s: float) -> float:
    """Return when to come back for a permit expected then, which nine times in ten comes at most `late_s` later.

    A little early; but where little is sure (few streams, answers of very different length) not before the time from
    which nine in ten are let in while their promise is still kept.
    """
    early_s = min(expected_s - _LEAD_S, expected_s / (1.0 + _LEAD_SHARE))
    return max(early_s, shortest_kept_s(expected_s + late_s))


def far_hint_s(totals: Totals) -> float:
    """Return 45 to 60 s, spread: of a place beyond the longest hint."""
    return FAR_HINT_S + spread(totals.hints_given) * (LONGEST_HINT_S - FAR_HINT_S)


def no_engine_hint_s(totals: Totals) -> float:
    """Return 5 to 10 s, spread."""
    return _NO_ENGINE_HINT_S * (1.0 + spread(totals.hints_given))

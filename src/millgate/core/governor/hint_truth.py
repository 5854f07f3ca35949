"""Whether hints were true: who came back when told, and was let in then."""

from millgate.core.governor.records import Attempt


def judge_hint(draft: Attempt, now: float, *, admitted: bool) -> None:
    """Count the hint that this attempt has followed, once, as it is admitted or refused; one who had none is left out.

    Who is back before its promise has nearly come, or after its place has ended, was not back when told.
    """
    appointment, back_at = draft.appointment, draft.arrived_at
    draft.appointment = None
    if appointment is None or not appointment.is_honoured(back_at):
        return
    pool = draft.route.pool
    if admitted and appointment.is_kept(back_at, now):
        draft.lane.hints_kept += 1
        pool.overtaking.was_kept(pool.capacity_forecast.per_s())
    else:
        draft.lane.hints_broken += 1
        if pool.places.is_as_expected(draft.told_share):
            pool.overtaking.was_broken(pool.capacity_forecast.per_s())

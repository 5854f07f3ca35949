"""Whether hints were true: who came back when told, and was let in then."""

from millgate.core.state.attempt import Attempt


def judge_hint(draft: Attempt, now: float, *, admitted: bool) -> None:
    """Count the hint that this attempt has followed, once, as it is admitted or refused; one who had none is left out.

    Who is back before its promise has nearly come, or after its place has ended, was not back when told.
    """
    appointment, back_at = draft.ends_appointment(), draft.arrived_at
    if appointment is None or not appointment.is_honoured(back_at):
        return
    pool = draft.route.pool
    kept = admitted and appointment.is_kept(back_at, now)
    draft.lane.judged_hint(kept=kept)
    if kept:
        pool.overtaking.was_kept(pool.capacity_forecast.per_s())
    elif pool.places.is_as_expected(draft.told_share):
        pool.overtaking.was_broken(pool.capacity_forecast.per_s())

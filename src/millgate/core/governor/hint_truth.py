"""Whether hints were true: was a client that returned on time admitted then?"""

from millgate.core.state.attempt import Attempt


def judge_hint(draft: Attempt, now: float, *, admitted: bool) -> None:
    """Count the hint that this attempt has followed, once, as it is admitted or refused; an attempt without one is left out.

    A return before the promise has nearly come, or after its appointment has lapsed, is not on time.
    """
    appointment, back_at = draft.ends_appointment(), draft.arrived_at
    if appointment is None or not appointment.is_honoured(back_at):
        return
    pool = draft.route.pool
    kept = admitted and appointment.is_kept(back_at, now)
    draft.lane.judged_hint(kept=kept)
    per_s = pool.capacity_forecast.per_s()
    if kept:
        pool.overtaking.was_kept(appointment.hint_s, per_s)
    elif pool.appointments.is_as_expected(draft.told_share):
        pool.overtaking.was_broken(appointment.hint_s, per_s)

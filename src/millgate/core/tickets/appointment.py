"""Whether a client that was told to return is on time: every tolerance of a hint stands here, and nowhere else."""

from typing import Final

# Hints start at 0.1 s, so no client that waits for one is back sooner: equal bodies that arrive together are
# different requests.
SOONEST_RETURN_S: Final = 0.1
# Hints stay in a range that every SDK honours: openai gives up above 120 s and treats 0 as absent (wire.md B1).
LONGEST_HINT_S: Final = 60.0
# So much before or after its hint a client is on time, and so long it is queued when it is due, even where nothing else is.
_TOLERANCE_S: Final = 1.0
# Of a long hint this share is no longer late.
_LATE_SHARE: Final = 0.1
# A promise is kept when its client is admitted within the longer of these two after its hint, or after its later return.
# Hints are measured by it: a client cannot tell less apart.
KEPT_S: Final = 0.5
KEPT_SHARE: Final = 0.2
# From this early return on a request stands at the end of the line at each: a client that polls keeps no turn.
EARLY_RETURNS_FORGIVEN: Final = 2


class Appointment:
    """One hint that a client was given: told at `told_at` to return after `hint_s`, which is at `due_at`; core seconds.

    A record of the client, a ticket and a line of a quota are judged by this class alone.
    """

    __slots__ = ("due_at", "hint_s", "told_at")

    def __init__(self, told_at: float, hint_s: float) -> None:
        self.told_at: Final = told_at
        self.hint_s: Final = hint_s
        self.due_at: Final = told_at + hint_s

    @property
    def known_from(self) -> float:
        """The earliest time at which an equal body is taken for this client's return."""
        return self.told_at + SOONEST_RETURN_S

    @property
    def opens_at(self) -> float:
        """The earliest return that is on time: 1 s before the hint, of a short hint the middle of the time before it.

        A client that was told 0.8 s and is back within 0.2 s has not waited.
        """
        return max(self.due_at - _TOLERANCE_S, (self.known_from + self.due_at) / 2.0)

    @property
    def late_s(self) -> float:
        """How long after the hint a return is still on time: 1 s, or a tenth of the hint if that is longer."""
        return max(_TOLERANCE_S, _LATE_SHARE * self.hint_s)

    @property
    def lapses_at(self) -> float:
        """The latest return that is on time."""
        return self.due_at + self.late_s

    @property
    def hold_s(self) -> float:
        """How long a client that is due is queued even where nothing else is: until its promise no longer counts as kept."""
        return max(_TOLERANCE_S, KEPT_SHARE * (self.due_at - self.known_from))

    def is_due(self, now: float) -> bool:
        """Return whether its time has come: a return now is not early, though it may be late."""
        return now >= self.opens_at

    def is_honoured(self, now: float) -> bool:
        """Return whether a return now is on time: neither early nor so late that the appointment has lapsed."""
        return self.is_due(now) and now <= self.lapses_at

    def is_kept(self, back_at: float, admitted_at: float) -> bool:
        """Return whether the promise to a client that is back at `back_at` counts as kept by this admission."""
        return admitted_at - max(self.due_at, back_at) <= kept_within_s(self.hint_s)

    def known_until(self, deadline: float) -> float:
        """Return until when its client is recognised: its deadline, or a little after the appointment if later."""
        return max(deadline, self.lapses_at, self.due_at + 2.0 * _TOLERANCE_S)


def kept_within_s(hint_s: float) -> float:
    """Return how long after a hint an admission still keeps the promise: 0.5 s, or a fifth of the hint."""
    return max(KEPT_S, KEPT_SHARE * hint_s)


def shortest_kept_s(latest_s: float) -> float:
    """Return the shortest hint that an admission after `latest_s` still keeps: the inverse of `kept_within_s`."""
    return min(latest_s - KEPT_S, latest_s / (1.0 + KEPT_SHARE))

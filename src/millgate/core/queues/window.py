"""Batch formation: a lane may hold its work for a moment, so that it starts together.

Engines read several short prompts in one step for nearly the price of one (dynamic batching: Crankshaw et al.,
*Clipper*, NSDI'17; Triton's `max_queue_delay`). A lane with a window lets nothing go until the batch is full, or the
window of the oldest has ended. It also lets go when the oldest has used up its share of the slack that it came with.
Then it lets everything go until nothing waits.
"""

from collections import OrderedDict
from typing import Final

# Our rule: t - entered <= 1/4 x the slack that is left, start_by - t, which ends at (entered + start_by / 4) / (1 + 1/4).
_WAIT_TO_SLACK_LEFT: Final = 0.25


def opens_at(entered_at: float, start_by: float, window_s: float) -> float:
    """Return until when the batch of this oldest attempt may be kept waiting; absolute seconds, never before it entered.

    `start_by` is the latest start with which its first token still meets its SLO.
    """
    shrunk = (entered_at + _WAIT_TO_SLACK_LEFT * start_by) / (1.0 + _WAIT_TO_SLACK_LEFT)
    return max(entered_at, min(entered_at + window_s, shrunk))


class BatchWindow:
    """Whether a lane may let its work go now, and when to look again; absolute core seconds.

    `window_s` bounds the wait for company of each batch's oldest. A batch is full when it would take every stream
    that is free for this lane, `free`: more company could not start with it.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._waiting: OrderedDict[int, float] = OrderedDict()
        self._going = False

    def entered(self, attempt: int, now: float, start_by: float) -> float:
        """One attempt began to wait; return until when it may wait for company where it is the oldest."""
        until = self._waiting[attempt] = opens_at(now, start_by, self._window_s)
        return until

    def left(self, attempt: int, *, admitted: bool) -> None:
        """One attempt waits no more; after an admission the rest of its batch follows without waiting."""
        del self._waiting[attempt]
        self._going = bool(self._waiting) and (self._going or admitted)

    def look_again_at(self, free: int) -> float | None:
        """Return when what waits may go, which may be past; None while nothing waits, -inf where it may go anyway."""
        if not self._waiting:
            return None
        if self._going or len(self._waiting) >= free:
            return float("-inf")
        return self._waiting[next(iter(self._waiting))]

    def is_open(self, free: int, now: float) -> bool:
        """Return whether what waits may go now."""
        at = self.look_again_at(free)
        return at is not None and now >= at

    def newcomer_goes_at(self, free: int, now: float, start_by: float) -> float:
        """Return when an attempt that comes now might go: now, or with its batch; changes nothing."""
        if self._going or len(self._waiting) + 1 >= free:
            return now
        at = self.look_again_at(free)
        return max(now, opens_at(now, start_by, self._window_s) if at is None else at)

"""Is the gate refusing for want of capacity, since when, and which hints does it give?

A few numbers, brought up to date with every refusal, so that no reader has to walk through an overload to sum it up.
"""

from collections import deque
from typing import Final

from millgate.core.decisions import Yield
from millgate.core.words import Reason

OVERLOAD_REASONS: Final = frozenset(
    {Reason.SATURATED, Reason.QUEUE_FULL, Reason.DISPLACED, Reason.TOO_LATE, Reason.EXPIRED}
)
"""Refusals for want of capacity, whose hint is a place in the line; the others are rules (quotas), bad fit, or an engine or a lease that is gone."""

QUIET_S: Final = 10.0
"""Refusals further apart than this belong to two overloads: hints of a short one send clients back sooner."""


class Refusals:
    """Takes refusals and sums up the last `QUIET_S`; `refusing_since` is when the present overload began to refuse."""

    def __init__(self) -> None:
        self._hints: deque[tuple[int, float, float]] = deque()  # by second: the shortest and the longest
        self._refused_at = self._shed_at = float("-inf")
        self.refusing_since = 0.0

    def note(self, refusal: Yield, now: float) -> None:
        """Take one refusal at core time `now`."""
        is_shed = refusal.reason is Reason.OVERLOADED_GATE
        if is_shed:
            self._shed_at = now
        if is_shed or refusal.reason in OVERLOAD_REASONS:
            if now - self._refused_at > QUIET_S:
                self.refusing_since = now
            self._refused_at = now
        if refusal.retry:
            self._note_hint(refusal.retry_after_s, int(now))

    def _note_hint(self, hint_s: float, second: int) -> None:
        hints = self._hints
        if not hints or hints[-1][0] != second:
            hints.append((second, hint_s, hint_s))
            while second - hints[0][0] > QUIET_S:
                hints.popleft()
            return
        _, shortest_s, longest_s = hints[-1]
        if not shortest_s <= hint_s <= longest_s:
            hints[-1] = second, min(shortest_s, hint_s), max(longest_s, hint_s)

    def is_refusing(self, now: float) -> bool:
        """Return whether any client was refused for want of capacity, of engines or of the gate itself, within the last `QUIET_S`."""
        return now - self._refused_at <= QUIET_S

    def is_shedding(self, now: float) -> bool:
        """Return whether the gate itself was too slow for any client within the last `QUIET_S`; the core's counts do not have them."""
        return now - self._shed_at <= QUIET_S

    def hints(self, now: float) -> tuple[float, float] | None:
        """Return the shortest and longest hint of the last `QUIET_S` that was worth following, or None."""
        lately = [
            (least_s, most_s) for second, least_s, most_s in self._hints if int(now) - second <= QUIET_S
        ]
        if not lately:
            return None
        return min([least_s for least_s, _ in lately]), max([most_s for _, most_s in lately])

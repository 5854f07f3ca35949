"""How much longer will it run? By how permits so far have lasted, over what was foreseen of each.

Where only a mean length is known, a permit that has run for that long is not about to end: of lognormal answers with a
coefficient of variation of 1 it has as much before it as at its beginning. So the last permits are kept, and what remains of
one is read off those that lasted longer than it has so far (the empirical residual life: Kaplan and Meier 1958). The first to
end are the short ones, so until enough have ended those that run count as well.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque

from millgate.core.measure.lifetimes import LEAST_ENDED, lifetimes, say_enough
from millgate.core.sizing import MEMORY_ANSWERS


class PermitTimes:
    """The last permits, each by its time over the time that was foreseen for it.

    `has_news` says whether those that run should be told (`look`): one has ended since, and few have so far.
    """

    __slots__ = ("_is_young", "_last", "_lives", "_sorted", "has_news")

    def __init__(self) -> None:
        self._last: deque[float] = deque()
        self._sorted: list[float] = []
        self._lives: list[float] = []
        self._is_young = True
        self.has_news = False

    def lasted(self, stayed_s: float, foreseen_s: float) -> None:
        """Learn from one permit that has ended."""
        if foreseen_s <= 0.0:
            return
        share = stayed_s / foreseen_s
        self._last.append(share)
        insort(self._sorted, share)
        self.has_news = self._is_young
        if len(self._last) > MEMORY_ANSWERS:
            del self._sorted[bisect_left(self._sorted, self._last.popleft())]

    def look(self, running: list[float]) -> None:
        """Correct what the first permits say by these, which run and have lasted so long so far."""
        ended = self._sorted
        self.has_news = False
        self._is_young = len(ended) < MEMORY_ANSWERS and not say_enough(len(ended), len(running))
        has_lives = self._is_young and len(ended) >= LEAST_ENDED
        self._lives = lifetimes(ended, sorted(running)) if has_lives else []

    def share_at(self, share: float, level: float) -> float:
        """Return how long a permit lasts that has lasted `share` so far, at this level (0 to 1) of those that lasted longer.

        All are shares of what was foreseen. 1 before anything was learned, and at most `share` if none lasted longer.
        """
        known = self._lives or self._sorted
        if not known:
            return 1.0
        first, last = bisect_right(known, share), len(known) - 1
        at = min(max(float(first), first + level * (len(known) - first) - 0.5), float(last))
        low = int(at)
        return known[low] + (at - low) * (known[min(low + 1, last)] - known[low])

"""What falls due when: the times at which the core looks at an attempt again, earliest first."""

from heapq import heapify, heappop, heappush
from math import inf, nextafter
from typing import Final

from headgate.core.governor.records import Attempt

# What is over stays in until it is due; this many, and four for each attempt, are kept before they are dropped.
_STALE: Final = 1_000


class Wakes:
    """Times and whom they concern; of equal times the one that was asked for first comes first.

    The heap holds bare times, as comparing tuples made it three times dearer, and every request that does not stream
    passes it. No time is there twice: an equal one is put off by the smallest step that there is.
    """

    __slots__ = ("_attempts", "_times")

    def __init__(self) -> None:
        self._times: list[float] = []
        self._attempts: dict[float, int] = {}

    def __len__(self) -> int:
        """Return how many are kept, those that nobody waits for any more included."""
        return len(self._times)

    def add(self, at: float, attempt: int, alive: dict[int, Attempt]) -> None:
        """Look at this attempt at this time, unless that never comes.

        Where far too many are kept, those of attempts that are no longer alive are dropped.
        """
        if at == inf:
            return
        if len(self._times) > 4 * (len(alive) + _STALE):
            self._keep([time for time in self._times if self._attempts[time] in alive])
        while at in self._attempts:
            at = nextafter(at, inf)
        self._attempts[at] = attempt
        heappush(self._times, at)

    def first(self) -> float | None:
        """Return the earliest time, None when nothing will fall due."""
        return self._times[0] if self._times else None

    def pop(self, now: float) -> int | None:
        """Take out the first that is due by now and return its attempt; None when none is."""
        if not self._times or self._times[0] > now:
            return None
        return self._attempts.pop(heappop(self._times))

    def forget(self, attempt: int) -> None:
        """Drop everything that concerns this attempt."""
        self._keep([time for time in self._times if self._attempts[time] != attempt])

    def _keep(self, times: list[float]) -> None:
        heapify(times)
        self._times, self._attempts = times, {time: self._attempts[time] for time in times}

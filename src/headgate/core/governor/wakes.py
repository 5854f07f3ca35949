"""What falls due when: the times at which the core looks at an attempt again, earliest first."""

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from math import inf
from typing import Final

from headgate.core.governor.records import Attempt

# What is over stays in until it is due; this many, and four for each attempt, are kept before they are dropped.
_STALE: Final = 1_000


class Wakes:
    """Times and whom they concern; of equal times the one that was asked for first comes first.

    The heap holds bare times, each once, as comparing tuples made it three times dearer, and every request that does not
    stream passes it. Whoever shares a time with somebody waits behind them in a list of its own.
    """

    __slots__ = ("_count", "_first", "_others", "_times")

    def __init__(self) -> None:
        self._times: list[float] = []
        self._first: dict[float, int] = {}
        self._others: dict[float, deque[int]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return how many are kept, those that nobody waits for any more included."""
        return self._count

    def add(self, at: float, attempt: int, alive: dict[int, Attempt]) -> None:
        """Look at this attempt at this time, unless that never comes.

        Where far too many are kept, those of attempts that are no longer alive are dropped.
        """
        if at == inf:
            return
        if self._count > 4 * (len(alive) + _STALE):
            self._keep([(time, kept) for time, kept in self._all() if kept in alive])
        self._put(at, attempt)

    def first(self) -> float | None:
        """Return the earliest time, None when nothing will fall due."""
        return self._times[0] if self._times else None

    def pop(self, now: float) -> int | None:
        """Take out the first that is due by now and return its attempt; None when none is."""
        if not self._times or self._times[0] > now:
            return None
        self._count -= 1
        at = self._times[0]
        others = self._others.get(at) if self._others else None
        if others is None:
            heappop(self._times)
            return self._first.pop(at)
        attempt, self._first[at] = self._first[at], others.popleft()
        if not others:
            del self._others[at]
        return attempt

    def forget(self, attempt: int) -> None:
        """Drop everything that concerns this attempt."""
        self._keep([(time, kept) for time, kept in self._all() if kept != attempt])

    def _put(self, at: float, attempt: int) -> None:
        self._count += 1
        if at in self._first:
            self._others.setdefault(at, deque()).append(attempt)
            return
        self._first[at] = attempt
        heappush(self._times, at)

    def _all(self) -> Iterator[tuple[float, int]]:
        """Yield everything, of equal times the first first."""
        for at, attempt in self._first.items():
            yield at, attempt
            for other in self._others.get(at, ()):
                yield at, other

    def _keep(self, kept: list[tuple[float, int]]) -> None:
        self._times, self._first, self._others = [], {}, {}
        self._count = 0
        for at, attempt in kept:
            self._put(at, attempt)

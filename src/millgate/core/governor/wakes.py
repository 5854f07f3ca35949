"""What falls due when: the times at which the core looks at an attempt again, earliest first."""

from heapq import heapify, heappop, heappush
from math import inf

from millgate.core.state.attempt import Attempt
from millgate.core.tickets.records import most_notes


class Wakes:
    """Times, in a heap, and the attempts that they concern; of equal times the one that was asked for first comes first."""

    __slots__ = ("_count", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int]] = []
        self._count = 0

    def __len__(self) -> int:
        """Return how many are kept, those of attempts that are over included."""
        return len(self._heap)

    def add(self, at: float, attempt: int, alive: dict[int, Attempt]) -> None:
        """Look at this attempt at this time, unless that never comes.

        Those of attempts that are no longer alive are dropped: from the front, so that none is the next to fall due, and all
        of them where far too many are kept.
        """
        if at == inf:
            return
        heap = self._heap
        while heap and heap[0][2] not in alive:
            heappop(heap)
        if len(heap) > most_notes(len(alive)):
            self._heap = heap = [each for each in heap if each[2] in alive]
            heapify(heap)
        self._count += 1
        heappush(heap, (at, self._count, attempt))

    def first(self) -> float | None:
        """Return the earliest time, None when nothing will fall due."""
        return self._heap[0][0] if self._heap else None

    def pop(self, now: float) -> int | None:
        """Take out the first that is due by now and return its attempt; None when none is."""
        heap = self._heap
        return heappop(heap)[2] if heap and heap[0][0] <= now else None

    def forget(self, attempt: int) -> None:
        """Drop everything that concerns this attempt."""
        self._heap = [each for each in self._heap if each[2] != attempt]
        heapify(self._heap)

"""What falls due when: the times at which the core looks at an attempt again, earliest first."""

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from math import inf

from millgate.core.state.attempt import Attempt
from millgate.core.tickets import most_notes


class Wakes:
    """Times and whom they concern; of equal times the one that was asked for first comes first.

    The heap holds bare times, each once, as comparing tuples made it three times dearer. Attempts that share a time
    stand in a list behind its first. Times that come in order anyway stand in a line beside the heap.
    """

    __slots__ = ("_count", "_first", "_line", "_others", "_times")

    def __init__(self) -> None:
        self._times: list[float] = []
        self._first: dict[float, int] = {}
        self._others: dict[float, deque[int]] = {}
        self._line: deque[tuple[float, int]] = deque()
        self._count = 0

    def __len__(self) -> int:
        """Return how many are kept, those of attempts that are over included."""
        return self._count + len(self._line)

    def add(self, at: float, attempt: int, alive: dict[int, Attempt]) -> None:
        """Look at this attempt at this time, unless that never comes.

        Where far too many are kept, those of attempts that are no longer alive are dropped.
        """
        if at == inf:
            return
        if self._count > most_notes(len(alive)):
            self._keep([(time, kept) for time, kept in self._all() if kept in alive])
        self._put(at, attempt)

    def add_in_line(self, at: float, attempt: int, alive: dict[int, Attempt]) -> None:
        """Do as `add` does for a time that is mostly over before it comes, and mostly later than the last such time.

        An engine reads prompts in the order in which they come, and an answer is often whole before its prompt was
        believed to be read: such a time need not pass the heap.
        """
        line = self._line
        while line and line[0][1] not in alive:
            line.popleft()
        if (line and at < line[-1][0]) or len(line) > most_notes(len(alive)):
            self.add(at, attempt, alive)
        else:
            line.append((at, attempt))

    def first(self) -> float | None:
        """Return the earliest time, None when nothing will fall due."""
        if not self._line:
            return self._times[0] if self._times else None
        at = self._line[0][0]
        return self._times[0] if self._times and self._times[0] < at else at

    def pop(self, now: float) -> int | None:
        """Take out the first that is due by now and return its attempt; None when none is."""
        at = self.first()
        if at is None or at > now:
            return None
        if not self._times or at < self._times[0]:
            return self._line.popleft()[1]
        self._count -= 1
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
        self._line = deque([each for each in self._line if each[1] != attempt])
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

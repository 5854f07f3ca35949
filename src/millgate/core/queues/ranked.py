"""A list kept sorted by a key that is fixed at arrival, and the orders that are nothing else.

A sorted list beats a heap here. The newest arrival nearly always belongs at the end, an attempt whose client
hangs up is found by bisection, and how many are ahead is an index. Ten thousand entries move in microseconds.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from millgate.core.queues.base import Order, Queued

Key = tuple[float, float, int, int]


class RankedQueue(Order):
    """Queued attempts sorted by `key`; equal keys keep arrival order (INV-7), since the arrival number is in it."""

    def __init__(self, key: Callable[[Queued], Key]) -> None:
        self._key = key
        self._keys: list[Key] = []
        self._waiting: dict[Key, Queued] = {}

    def add(self, queued: Queued) -> None:
        """Put an attempt in its place; one that has another size but the same place follows itself."""
        key = self._key(queued)
        if key not in self._waiting:
            insort(self._keys, key)
        self._waiting[key] = queued

    def remove(self, queued: Queued) -> None:
        """Take this attempt out, wherever it stands; it must be in."""
        key = self._key(queued)
        if self._waiting[key] is queued:
            del self._waiting[key]
            del self._keys[bisect_left(self._keys, key)]

    def started(self, queued: Queued, now: float) -> None:
        """Nothing to note: this order looks at nothing but the key."""

    def settle(self, queued: Queued, prompt_tokens: int, output_tokens: int) -> None:
        """Nothing to correct: a rank is fixed at arrival."""

    def head(self) -> Queued | None:
        """Return the next attempt, without taking it out."""
        return self._waiting[self._keys[0]] if self._keys else None

    def last(self) -> Queued:
        """Return the attempt of the highest rank, without taking it out."""
        return self._waiting[self._keys[-1]]

    def ahead_of(self, queued: Queued) -> int:
        """Return how many would be admitted before this one, whether or not it is in."""
        key = self._key(queued)
        if not self._keys or key > self._keys[-1]:
            return len(self._keys)
        return bisect_left(self._keys, key)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Queued]:
        """Yield everything that waits, next first."""
        return (self._waiting[key] for key in self._keys)


class ArrivalOrder(RankedQueue):
    """First come, first served, by the age of the *request*: a recognised retry gets its old place back.

    The age is `first_seen`, or that of an older one before which its appointment stands.
    """

    def __init__(self) -> None:
        super().__init__(lambda queued: (queued.as_old_as, 0.0, queued.turn, queued.arrival_number))


class DeadlineOrder(RankedQueue):
    """Earliest deadline first (Liu and Layland 1973), then by age: optimal while everything can be served in time.

    The deadline is the lane's, counted from its origin: a time that a client gave itself never moves it forward, or the
    impatient would jump every queue (design section 4, step 4).
    """

    def __init__(self) -> None:
        super().__init__(lambda queued: (queued.lane_deadline, queued.first_seen, 0, queued.arrival_number))

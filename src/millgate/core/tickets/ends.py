"""When which record is over: slots by the sixteenth of a second in which they end.

Those that end together wait in one array, and a heap holds the ticks alone: a thousand for a minute. A heap of a hundred
thousand ends took 0.8 us to take one out of.
"""

from array import array
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from math import ceil, floor
from typing import Final

# What is over is over a sixteenth of a second later at most; promises are kept within half a second.
TICKS_PER_S: Final = 16.0
# So many notes beside live ones are kept in any case: short lists need not be made anew at every end.
_NOTES_FLOOR: Final = 1_000


def tick_of(at: float) -> int:
    """Return the tick that has passed once this time has."""
    return ceil(at * TICKS_PER_S)


def last_tick(now: float) -> int:
    """Return the last tick that has passed at this time."""
    return floor(now * TICKS_PER_S)


def most_notes(count: int) -> int:
    """Return how many notes are kept for so many that may end; beyond it most are stale, and the true ones are noted anew."""
    return 2 * (count + _NOTES_FLOOR)


class Ends:
    """Notes of slots by the tick of their end; a slot may be noted more than once, and its owner knows which is true."""

    __slots__ = ("_length", "_slots", "_ticks")

    def __init__(self, notes: Iterable[tuple[int, int]] = ()) -> None:
        self._slots: dict[int, array[int]] = {}
        self._ticks: list[int] = []
        self._length = 0
        for tick, slot in notes:
            self.add(tick, slot)

    def __len__(self) -> int:
        """Return how many notes there are."""
        return self._length

    def add(self, tick: int, slot: int) -> None:
        """Note that this slot ends with this tick."""
        slots = self._slots.get(tick)
        if slots is None:
            slots = self._slots[tick] = array("i")
            heappush(self._ticks, tick)
        slots.append(slot)
        self._length += 1

    def has_any(self, until: int) -> bool:
        """Return whether there may be notes of this tick or an earlier one."""
        return bool(self._ticks) and self._ticks[0] <= until

    def pop(self, until: int) -> int | None:
        """Take out one note of the earliest tick, this one at the latest, and return its slot; None without one."""
        ticks = self._ticks
        while ticks and (first := ticks[0]) <= until:
            slots = self._slots[first]
            if slots:
                self._length -= 1
                return slots.pop()
            heappop(ticks)
            del self._slots[first]
        return None

    def upcoming(self, until: int) -> Iterator[int]:
        """Yield the slots that `pop` would return one after the other."""
        for tick in sorted([each for each in self._ticks if each <= until]):
            yield from reversed(self._slots[tick])

"""Sorted whole numbers, each with its owner and weight, that tell how many are smaller and how much those weigh.

A hundred thousand waiting clients may be in one line. A tree of Python objects would take 100 bytes for each; arrays of
machine integers take 16, and none of the garbage collector's time. They are cut into blocks (the layout of Grant Jenks'
*sortedcontainers*): an insertion moves some kilobytes whatever the length, and counting the blocks before is a short sum.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

# A full block is cut in half. 1,024 keys are 8 KB: moved in a quarter of a microsecond, at most 512 weights are summed in
# 4 us, and 100,000 keys are at most 196 blocks.
_FULL_BLOCK: Final = 1024
MOST_WEIGHT: Final = (1 << 32) - 1
"""What 32 bits can count."""


class Ranking:
    """Keys in ascending order, of 64 bits, signed, with owners of 32 bits and weights of 32 bits, unsigned."""

    __slots__ = ("_keys", "_length", "_owners", "_tops", "_totals", "_weights", "total")

    def __init__(self) -> None:
        self._keys: list[array[int]] = []
        self._owners: list[array[int]] = []
        self._weights: list[array[int]] = []
        self._tops: list[int] = []
        self._totals: list[int] = []
        self._length = self.total = 0

    def __len__(self) -> int:
        """Return how many keys there are."""
        return self._length

    def __iter__(self) -> Iterator[int]:
        """Yield the owners by ascending key."""
        for owners in self._owners:
            yield from owners

    def after(self, key: int) -> tuple[int, int] | None:
        """Return the smallest key that is not smaller than this one, with its owner; None if there is none."""
        block = bisect_left(self._tops, key)
        if block == len(self._tops):
            return None
        keys = self._keys[block]
        index = bisect_left(keys, key)
        return keys[index], self._owners[block][index]

    def first(self) -> tuple[int, int] | None:
        """Return the smallest key and its owner, or None."""
        return (self._keys[0][0], self._owners[0][0]) if self._length else None

    def last(self) -> tuple[int, int] | None:
        """Return the largest key and its owner, or None."""
        return (self._tops[-1], self._owners[-1][-1]) if self._length else None

    def weighed_before(self, key: int) -> tuple[int, int]:
        """Return how many keys are smaller, and their weight."""
        tops = self._tops
        if not tops or key > tops[-1]:
            return self._length, self.total
        block = bisect_left(tops, key)
        weights, index = self._weights[block], bisect_left(self._keys[block], key)
        if 2 * index <= len(weights):
            inside = sum(weights[:index], 0)
        else:
            inside = self._totals[block] - sum(weights[index:], 0)
        return sum(map(len, self._keys[:block])) + index, sum(self._totals[:block]) + inside

    def weights_before(self, key: int, most: int) -> "array[int]":
        """Return the weights of the smaller keys, smallest first, at most so many."""
        if self._tops:
            head = self._keys[0]
            if len(head) >= most and head[most - 1] < key:  # before a newcomer to a long line
                return self._weights[0][:most]
        found = array("I")
        for keys, weights in zip(self._keys, self._weights, strict=True):
            room = most - len(found)
            smaller = room if len(keys) > room and keys[room] <= key else bisect_left(keys, key)
            found += weights[: min(smaller, room)]
            if len(found) == most or keys[-1] >= key:
                break
        return found

    def add(self, key: int, owner: int, weight: int = 0) -> None:
        """Put a key in; it stands before an equal one."""
        self._length += 1
        self.total += weight
        tops = self._tops
        if not tops:
            self._keys, self._owners, self._weights = [array("q")], [array("i")], [array("I")]
            tops.append(key)
            self._totals.append(0)
        block = bisect_left(tops, key) if key <= tops[-1] else len(tops) - 1
        keys = self._keys[block]
        index = bisect_left(keys, key) if key <= tops[-1] else len(keys)
        keys.insert(index, key)
        self._owners[block].insert(index, owner)
        self._weights[block].insert(index, weight)
        tops[block] = keys[-1]
        self._totals[block] += weight
        if len(keys) > _FULL_BLOCK:
            self._cut(block)

    def remove(self, key: int) -> None:
        """Take the first of this key out, with its weight; it must be in."""
        block = bisect_left(self._tops, key)
        keys = self._keys[block]
        index = bisect_left(keys, key)
        found = keys.pop(index)
        assert found == key
        del self._owners[block][index]
        weight = self._weights[block].pop(index)
        self._totals[block] -= weight
        self.total -= weight
        self._length -= 1
        if not keys:
            del (
                self._keys[block],
                self._owners[block],
                self._weights[block],
                self._tops[block],
                self._totals[block],
            )
        elif index == len(keys):
            self._tops[block] = keys[-1]

    def without(self, keys: list[int]) -> "Ranking":
        """Return a copy that lacks these keys, each of which is in."""
        other = Ranking()
        other._keys = [block[:] for block in self._keys]
        other._owners = [block[:] for block in self._owners]
        other._weights = [block[:] for block in self._weights]
        other._tops, other._totals = self._tops[:], self._totals[:]
        other._length, other.total = self._length, self.total
        for key in keys:
            other.remove(key)
        return other

    def _cut(self, block: int) -> None:
        half = _FULL_BLOCK // 2
        for blocks in (self._keys, self._owners, self._weights):
            whole = blocks[block]
            blocks[block : block + 1] = [whole[:half], whole[half:]]
        self._tops[block : block + 1] = [self._keys[block][-1], self._keys[block + 1][-1]]
        first = sum(self._weights[block], 0)
        self._totals[block : block + 1] = [first, self._totals[block] - first]

"""Sorted whole numbers, each with its owner, that tell how many are smaller: twelve bytes and a microsecond each.

A hundred thousand waiting clients may be in one line. A tree of Python objects would take 100 bytes for each; arrays of
machine integers take 12, and none of the garbage collector's time. They are cut into blocks (the layout of Grant Jenks'
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
    """Keys in ascending order with their owners; keys fit in 64 bits, signed, owners in 32."""

    __slots__ = ("_keys", "_length", "_owners", "_tops")

    def __init__(self) -> None:
        self._keys: list[array[int]] = []
        self._owners: list[array[int]] = []
        self._tops: list[int] = []
        self._length = 0

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

    def add(self, key: int, owner: int) -> None:
        """Put a key in; an equal one stands behind it."""
        self._length += 1
        tops = self._tops
        if not tops:
            self._keys.append(array("q", (key,)))
            self._owners.append(array("i", (owner,)))
            tops.append(key)
            return
        if key > tops[-1]:
            block = len(tops) - 1
            keys = self._keys[block]
            keys.append(key)
            self._owners[block].append(owner)
            tops[block] = key
        else:
            block = bisect_left(tops, key)
            keys = self._keys[block]
            index = bisect_left(keys, key)
            keys.insert(index, key)
            self._owners[block].insert(index, owner)
        if len(keys) > _FULL_BLOCK:
            self._cut(block)

    def remove(self, key: int) -> None:
        """Take the first of this key out; it must be in."""
        block = bisect_left(self._tops, key)
        keys, owners = self._keys[block], self._owners[block]
        index = bisect_left(keys, key)
        found = keys.pop(index)
        assert found == key
        del owners[index]
        self._length -= 1
        if index < len(keys):
            return
        if keys:
            self._tops[block] = keys[-1]
        else:
            del self._keys[block], self._owners[block], self._tops[block]

    def without(self, keys: list[int]) -> "Ranking":
        """Return a copy that lacks these keys, each of which is in."""
        other = Ranking()
        other._keys = [block[:] for block in self._keys]
        other._owners = [block[:] for block in self._owners]
        other._tops = self._tops[:]
        other._length = self._length
        for key in keys:
            other.remove(key)
        return other

    def _cut(self, block: int) -> None:
        half = _FULL_BLOCK // 2
        for blocks in (self._keys, self._owners):
            whole = blocks[block]
            blocks[block : block + 1] = [whole[:half], whole[half:]]
        self._tops[block : block + 1] = [self._keys[block][-1], self._keys[block + 1][-1]]


class WeighedRanking(Ranking):
    """A ranking whose keys have weights, whole numbers of 32 bits, and that tells how much the smaller ones weigh."""

    __slots__ = ("_totals", "_weights", "total")

    def __init__(self) -> None:
        super().__init__()
        self._weights: list[array[int]] = []
        self._totals: list[int] = []
        self.total = 0

    def weighed_before(self, key: int) -> tuple[int, int]:
        """Return how many keys are smaller, and their weight."""
        tops = self._tops
        if not tops or key > tops[-1]:
            return self._length, self.total
        block = bisect_left(tops, key)
        weights, index = self._weights[block], bisect_left(self._keys[block], key)
        if 2 * index <= len(weights):
            inside = sum(weights[:index])
        else:
            inside = self._totals[block] - sum(weights[index:])
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

    def weigh_in(self, key: int, owner: int, weight: int) -> None:
        """Put a key in with its weight, a whole number of 32 bits."""
        tops = self._tops
        self.total += weight
        if not tops:
            self._weights.append(array("I", (weight,)))
            self._totals.append(weight)
        elif key > tops[-1]:  # a newcomer, as most are
            self._weights[-1].append(weight)
            self._totals[-1] += weight
        else:
            block = bisect_left(tops, key)
            self._weights[block].insert(bisect_left(self._keys[block], key), weight)
            self._totals[block] += weight
        self.add(key, owner)

    def remove(self, key: int) -> None:
        """Take the first of this key out, with its weight; it must be in."""
        block = bisect_left(self._tops, key)
        weights = self._weights[block]
        weight = weights.pop(bisect_left(self._keys[block], key))
        self.total -= weight
        self._totals[block] -= weight
        if not weights:
            del self._weights[block], self._totals[block]
        super().remove(key)

    def lacking(self, keys: list[int]) -> "WeighedRanking":
        """Return a copy that lacks these keys, each of which is in."""
        other = WeighedRanking()
        other._keys = [block[:] for block in self._keys]
        other._owners = [block[:] for block in self._owners]
        other._weights = [block[:] for block in self._weights]
        other._tops, other._totals = self._tops[:], self._totals[:]
        other._length, other.total = self._length, self.total
        for key in keys:
            other.remove(key)
        return other

    def _cut(self, block: int) -> None:
        super()._cut(block)
        half, weights = _FULL_BLOCK // 2, self._weights[block]
        self._weights[block : block + 1] = [weights[:half], weights[half:]]
        first = sum(weights[:half])
        self._totals[block : block + 1] = [first, self._totals[block] - first]

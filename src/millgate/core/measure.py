"""Small statistics of what is served, in bounded memory: means that forget, rolling counts, lines, quantiles, ranks.

`Sketch` is a histogram with logarithmic bins between two fixed ends (Masson, Rim and Lee, DDSketch, VLDB 2019). Inside the bin
that holds a quantile the weight is taken as even, so that a limit which steers by it sees no steps. Instead of old samples
fading the weight of new ones grows (Cormode, Shkapenyuk, Srivastava and Xu, Forward Decay, ICDE 2009).

`Ranking` is for lines of a hundred thousand clients. A tree of Python objects would take 100 bytes for each; arrays of machine
integers take 20, and none of the garbage collector's time. They are cut into blocks (the layout of Grant Jenks'
*sortedcontainers*): an insertion moves some kilobytes whatever the length, and counting the blocks before is a short sum.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from math import ceil, exp, log, sqrt
from typing import Final

UPPER_SHARE: Final = 0.9
"""What is told of a wait holds nine times in ten (QLM's upper quantile), and what one in ten shows is a sign."""
UPPER_Z: Final = 1.2816
"""The same point of the normal law, one-sided, in standard deviations."""
ENOUGH: Final = 20
"""So many outcomes say something: of fewer one alone moves a share by more than a twentieth."""
PRIOR_OUTCOMES: Final = 1.5
"""How many outcomes a first belief weighs. That every client returns: a weight of 5 idles the engine for a tenth longer
once a crowd has gone (tests/core/governor/test_absent_clients.py). How long answers are: with 0.25 the first one
decides what all others are taken for, and 95.7 % of the hints of 16 streams are kept, all with 1.5 (`python -m lab run
hints`, six seeds)."""
ALIKE: Final = 0.1
"""What differs by no more than this share is alike: estimates are off by as much."""
LOOKED_AT: Final = 16
"""Of what would take long to look through so many are looked at."""
WINDOW_S: Final = 10
"""Over so many seconds what happens is counted as a rate: as Hystrix does failures
(`metrics.rollingStats.timeInMilliseconds`, 10,000), and Finagle, Linkerd and Twitter retries. Within less of it a few
events are one moment."""
OUTLIER_RATIO: Final = 8.0
"""A sample counts as at most so many times what was expected: one stalled answer must not teach a second per token, and
a truly slower engine is reached within a few samples (8 x 8 x 8)."""
MEMORY: Final = 200.0
"""Samples after which an old one weighs 1/e: the mean of what varies as much as itself is then known to 7 %, a 95th percentile
is steady, and a new release shows within a minute of traffic."""


def spread(count: int) -> float:
    """Return the `count`-th number of a sequence that fills [0, 1) evenly: multiples of the golden ratio (Weyl 1916), for the core has no dice."""
    return (count + 1) * 0.6180339887498949 % 1.0


class Ewma:
    """The mean and the spread of a stream of numbers, in its own unit.

    The first samples are averaged plainly (weight 1/n, the prior counting as `prior_samples`), later ones weigh 1/`memory`.
    """

    def __init__(self, prior: float, *, memory: float = MEMORY, prior_samples: float = 2.0) -> None:
        self.mean = prior
        self.variance = 0.0
        self._count = self._prior_samples = prior_samples
        self._memory = memory

    def add(self, value: float) -> None:
        """Learn one sample."""
        if self._count < self._memory:
            self._count += 1.0
        weight = 1.0 / self._count
        delta = value - self.mean
        self.mean += weight * delta
        self.variance = (1.0 - weight) * (self.variance + weight * delta * delta)

    @property
    def samples(self) -> float:
        """How many samples the estimate rests on, the prior not counted; at most the memory."""
        return self._count - self._prior_samples

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        return sqrt(self.variance)


# A trial is forgotten by a fiftieth with each later one: a crowd that stays away is believed gone after some twenty.
_KEEP: Final = 1.0 - 1.0 / 50.0


class Trials:
    """The weights of what has succeeded and of all that was tried, which forget."""

    def __init__(self) -> None:
        self._succeeded = self._tried = 0.0

    def add(self, success: float) -> None:
        """Count one that has succeeded (1) or not (0)."""
        self._succeeded, self._tried = self._succeeded * _KEEP + success, self._tried * _KEEP + 1.0

    def once_failed(self, times: int) -> tuple[float, float]:
        """Return both weights as they are once so many more have failed."""
        succeeded, tried = self._succeeded, self._tried
        for _ in range(times):
            succeeded, tried = succeeded * _KEEP, tried * _KEEP + 1.0
        return succeeded, tried


class Window:
    """So many counters over a rolling span of `parts` times `part_s` core seconds: a ring, the oldest part forgotten whole."""

    def __init__(self, part_s: float, parts: int, counters: int) -> None:
        self._part_s, self._parts, self._counters = part_s, parts, counters
        self._counts = [[0] * counters for _ in range(parts)]
        self._stamps = [-1] * parts

    def add(self, now: float, amounts: tuple[int, ...]) -> None:
        """Add to every counter, in their order; nothing to a part that is forgotten."""
        stamp = int(now / self._part_s)
        place = stamp % self._parts
        if self._stamps[place] > stamp:
            return
        if self._stamps[place] < stamp:
            self._stamps[place] = stamp
            self._counts[place] = list(amounts)
            return
        counts = self._counts[place]
        for index, amount in enumerate(amounts):
            if amount:  # and no `+=`: compiled, that is a call of the interpreter for an item
                counts[index] = counts[index] + amount

    def read(self, now: float, parts: int) -> tuple[int, ...]:
        """Return every counter over the newest parts, the running one included; changes nothing."""
        newest = int(now / self._part_s)
        current = [
            self._counts[stamp % self._parts]
            for stamp in range(newest - min(parts, self._parts) + 1, newest + 1)
            if self._stamps[stamp % self._parts] == stamp
        ]
        return tuple(sum([counts[index] for counts in current]) for index in range(self._counters))


class LearnedLine:
    """A line through a cloud of points, y = base + slope x, by least squares that forget.

    The prior is two pseudo-observations that never decay, at x = 0 and at a typical x: an unused part of the line stays where
    the prior put it. Both coefficients are kept at or above zero: no engine gets faster with more work.
    """

    def __init__(self, base: float, slope: float, *, typical_x: float) -> None:
        self.base, self.slope = base, slope
        self._decay = 1.0 - 1.0 / MEMORY
        far = base + slope * typical_x
        self._prior = 2.0, typical_x, base + far, typical_x * typical_x, typical_x * far
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def at(self, x: float) -> float:
        """Return the predicted y."""
        return self.base + self.slope * x

    def add(self, x: float, y: float) -> None:
        """Learn one point."""
        expected = self.base + self.slope * x
        if expected > 0.0:  # a line that lies at zero must be able to leave it
            y = max(expected / OUTLIER_RATIO, min(expected * OUTLIER_RATIO, y))
        decay = self._decay
        self._n = n = self._n * decay + 1.0
        self._x = sum_x = self._x * decay + x
        self._y = sum_y = self._y * decay + y
        self._xx = sum_xx = self._xx * decay + x * x
        self._xy = sum_xy = self._xy * decay + x * y
        # Solve the two normal equations, prior included, within the positive quadrant.
        n0, x0, y0, xx0, xy0 = self._prior
        n += n0
        sum_x += x0
        sum_y += y0
        sum_xx += xx0
        sum_xy += xy0
        spread = n * sum_xx - sum_x * sum_x
        slope = (n * sum_xy - sum_x * sum_y) / spread if spread > 0.0 else 0.0
        base = (sum_y - slope * sum_x) / n
        if slope < 0.0:
            slope, base = 0.0, sum_y / n
        elif base < 0.0:
            slope, base = sum_xy / sum_xx, 0.0
        self.slope, self.base = slope, base


# Neighbouring bins are a twentieth apart: a quantile is within 5 % of all in its bin.
_WIDTH: Final = log(1.05)
# Weights are scaled back from here on, far below where adding 1 to a double is lost.
_HEAVIEST: Final = 1e9
# The usual lower end, of which the upper is the reciprocal: a tenth of a millisecond to hours, and ratios.
_LEAST: Final = 1e-4


class Sketch:
    """Mean and quantiles of positive numbers, in their own unit; quantiles are right within 5 %.

    What lies outside `least`..`most` (None: 1 / `least`) counts as the nearer end in quantiles, and as itself in the mean.
    `memory` is the number of samples after which an old one weighs 1/e of a new one; None forgets nothing.
    """

    def __init__(
        self, least: float = _LEAST, most: float | None = None, *, memory: float | None = None
    ) -> None:
        self.least = least
        self._log = log(least)
        # A list, not an array, in which setting a number costs 0.1 us more; it grows up to the highest bin that is used.
        self._bins = [0.0]
        self._last = ceil((log(most or 1.0 / least) - self._log) / _WIDTH) + 1
        self._growth = 1.0 if memory is None else memory / (memory - 1.0)
        self._top, self._weight = 0, 1.0
        self._total = self._sum = 0.0
        self._known: dict[float, float] = {}

    def add(self, value: float) -> None:
        """Learn one sample."""
        bins = self._bins
        place = int((log(value) - self._log) / _WIDTH) + 1 if value > self.least else 0
        if place > self._top:
            place = min(place, self._last)
            bins += [0.0] * (place - self._top)
            self._top = place
        self._weight = weight = self._weight * self._growth
        bins[place] = bins[place] + weight  # as in `Window.add`
        self._total += weight
        self._sum += weight * value
        if self._known:
            self._known = {}
        if weight > _HEAVIEST:
            self._rescale()

    def fade(self, share: float) -> None:
        """Let everything learned so far weigh only this share of what it did, for forgetting by time."""
        self._weight /= share
        if self._weight > _HEAVIEST:
            self._rescale()

    @property
    def samples(self) -> float:
        """How many samples the readings rest on, each counted as what it still weighs."""
        return self._total / self._weight

    @property
    def mean(self) -> float:
        """The mean, 0 before the first sample."""
        return self._sum / self._total if self._total else 0.0

    def quantile(self, share: float) -> float:
        """Return the number below which this share of the samples lies, within 5 %; 0 before the first sample."""
        known = self._known.get(share)
        if known is None:
            known = self._known[share] = self._search(share)
        return known

    def _search(self, share: float) -> float:
        """Search from above: upper quantiles are asked for."""
        if not self._total:
            return 0.0
        above, place = (1.0 - share) * self._total, self._top
        while place > 0 and (above > self._bins[place] or not self._bins[place]):
            above -= self._bins[place]
            place -= 1
        if not place:
            return self.least
        return exp(self._log + (place - above / self._bins[place]) * _WIDTH)

    def _rescale(self) -> None:
        scale = 1.0 / self._weight
        self._bins = [weight * scale for weight in self._bins]
        self._total *= scale
        self._sum *= scale
        self._weight = 1.0


# A full block is cut in half. 1,024 keys are 8 KB: moved in a quarter of a microsecond, at most 512 weights are summed in
# 4 us, and 100,000 keys are at most 196 blocks.
_FULL_BLOCK: Final = 1024
MOST_WEIGHT: Final = (1 << 32) - 1
"""What 32 bits can count."""


class Ranking:
    """Keys in ascending order, with owners, both of 64 bits, signed, and, where they are `weighed`, weights of 32 bits, unsigned."""

    def __init__(self, *, weighed: bool = True) -> None:
        self._weighed = weighed
        self._keys: list[array[int]] = []
        self._owners: list[array[int]] = []
        self._weights: list[array[int]] = []
        self._tops: list[int] = []
        self._totals: list[int] = []
        self._length = self.total = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        """Yield the owners by ascending key."""
        for owners in self._owners:
            yield from owners

    def after(self, key: int) -> tuple[int, int] | None:
        """Return the smallest key that is not smaller than this one, with its owner; None if there is none."""
        tops = self._tops
        if not tops or key > tops[-1]:
            return None
        block = bisect_left(tops, key)
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
            last = min(most, len(head)) - 1
            if head[last] < key and (last == most - 1 or len(self._tops) == 1):  # before a newcomer
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
            self._keys, self._owners, self._weights = [array("q")], [array("q")], [array("I")]
            tops.append(key)
            self._totals.append(0)
        if key > tops[-1]:  # as of most newcomers
            block = len(tops) - 1
            keys = self._keys[block]
            keys.append(key)
            self._owners[block].append(owner)
            if self._weighed:
                self._weights[block].append(weight)
            tops[block] = key
        else:
            block = bisect_left(tops, key)
            keys = self._keys[block]
            index = bisect_left(keys, key)
            keys.insert(index, key)
            self._owners[block].insert(index, owner)
            if self._weighed:
                self._weights[block].insert(index, weight)
        if weight:
            self._totals[block] = self._totals[block] + weight  # as in `Window.add`
        if len(keys) > _FULL_BLOCK:
            self._cut(block)

    def remove(self, key: int) -> None:
        """Take the first of this key out, with its weight; it must be in."""
        block = bisect_left(self._tops, key) if len(self._tops) > 1 else 0
        keys = self._keys[block]
        index = 0 if keys[0] == key else bisect_left(keys, key)  # it mostly is the first
        assert keys[index] == key
        del keys[index]  # compiled, to read and to delete takes half of what `pop` does
        del self._owners[block][index]
        if self._weighed:
            weight = self._weights[block][index]
            del self._weights[block][index]
            self._totals[block] = self._totals[block] - weight
            self.total -= weight
        self._length -= 1
        if not keys:
            del self._keys[block], self._owners[block], self._weights[block]
            del self._tops[block], self._totals[block]
        elif index == len(keys):
            self._tops[block] = keys[-1]

    def without(self, keys: list[int]) -> "Ranking":
        """Return a copy that lacks these keys, each of which is in."""
        other = Ranking(weighed=self._weighed)
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

"""Small statistics of what is served, in bounded memory: means that forget, rolling counts, lines, and lifetimes."""

from collections.abc import Sequence
from math import log, sqrt
from typing import Final

MEMORY: Final = 200.0
"""Samples after which an old one weighs 1/e: the mean of what varies as much as itself is then known to 7 %, a 95th percentile
is steady, and a new release shows within a minute of traffic."""


class Ewma:
    """The mean and the spread of a stream of numbers, in its own unit.

    The first samples are averaged plainly (weight 1/n, the prior counting as `prior_samples`), later ones weigh 1/`memory`.
    """

    __slots__ = ("_count", "_memory", "_prior_samples", "mean", "variance")

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


class Window:
    """So many counters over a rolling span of `parts` times `part_s` core seconds: a ring, the oldest part forgotten whole."""

    __slots__ = ("_counters", "_counts", "_part_s", "_parts", "_stamps")

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
            counts[index] += amount

    def read(self, now: float, parts: int) -> tuple[int, ...]:
        """Return every counter over the newest parts, the running one included; changes nothing."""
        newest = int(now / self._part_s)
        current = [
            self._counts[stamp % self._parts]
            for stamp in range(newest - min(parts, self._parts) + 1, newest + 1)
            if self._stamps[stamp % self._parts] == stamp
        ]
        return tuple(sum([counts[index] for counts in current]) for index in range(self._counters))


# A sample counts as at most so many times the prediction, or as that part of it: one stalled answer must not teach a
# second per token, and a truly slower engine is reached within a few samples (8 x 8 x 8).
_OUTLIER_RATIO: Final = 8.0


class LearnedLine:
    """A line through a cloud of points, y = base + slope x, by least squares that forget.

    The prior is two pseudo-observations that never decay, at x = 0 and at a typical x: an unused part of the line stays where
    the prior put it. Both coefficients are kept at or above zero: no engine gets faster with more work.
    """

    __slots__ = ("_decay", "_n", "_prior", "_x", "_xx", "_xy", "_y", "base", "slope")

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
            y = max(expected / _OUTLIER_RATIO, min(expected * _OUTLIER_RATIO, y))
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


LEAST_ENDED: Final = 3
"""Fewer ends say nothing."""
LIVES: Final = 64
"""So many lives stand for all."""
# After so many ends for each that runs the mean of what has ended is a hundredth or two too short.
_TURNS: Final = 20


def say_enough(ended: int, running: int) -> bool:
    """Return whether the ends alone say how long lives are, beside so many that run."""
    return ended >= _TURNS * max(1, running)


def lifetimes(ended: Sequence[float], running: Sequence[float], count: int = LIVES) -> list[float]:
    """Return `count` lives, ascending, at equal steps of the distribution of all: those that still run last longer than so far.

    That is the product-limit estimate (Kaplan and Meier 1958), with an exponential tail beyond the longest that has ended.
    `ended` are lives and `running` lives so far, both ascending; `ended` is not empty.
    """
    lives: list[float] = []
    at_risk, left, younger = len(ended) + len(running), 1.0, 0
    for life in ended:
        while younger < len(running) and running[younger] < life:
            younger += 1
            at_risk -= 1
        left *= 1.0 - 1.0 / at_risk
        at_risk -= 1
        while len(lives) < count and (len(lives) + 0.5) / count <= 1.0 - left:
            lives.append(life)
    longest, older = ended[-1], running[younger:]
    mean = (sum(ended, 0.0) + sum(running, 0.0)) / len(ended)
    if older:
        mean += sum(older, 0.0) / len(older) - longest
    tail = [longest + mean * log(left * count / (count - step - 0.5)) for step in range(len(lives), count)]
    return lives + tail

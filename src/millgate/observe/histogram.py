"""Histograms as plain integers: filled on the path for the price of a few comparisons, rendered elsewhere.

A sample lies in the first bucket whose bound is not below it, as Prometheus counts (`le`). The buckets here are not
cumulative; the reader adds them up.
"""

from math import exp
from typing import NamedTuple

# What is called the present variance is that of about the last minute.
_SPREAD_MEMORY_S = 60.0
# Samples closer together than this are equally old: a hundredth of the memory, and an exponential saved.
_SAME_AGE_S = 0.6
# What came last so long ago says nothing of the present.
_MOST_SILENT_S = 120.0


class Histogram(NamedTuple):
    """One histogram at one instant: upper bounds, the samples in each bucket, the last beyond all bounds, their sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class Buckets:
    """Counts samples by size, in the unit of `bounds`, which rise."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count one sample, which stands for so many.

        Bounds are few and most samples small: compiled, this takes half as long as `bisect_left` for those in the first
        bucket, and as long for those in the last of nine.
        """
        place = 0
        for bound in self._bounds:
            if not bound < value:
                break
            place += 1
        self._counts[place] += times
        self._total += value * times

    def read(self) -> Histogram:
        """Return the counts as they are now."""
        return Histogram(self._bounds, tuple(self._counts), self._total)


class Spread:
    """Mean and variance of weighted samples that forget with a time constant of a minute.

    The update is West's (Communications of the ACM 22, 1979, Updating Mean and Variance Estimates), with all weights
    multiplied by exp(-t / 60 s) as time passes.
    """

    def __init__(self) -> None:
        self._at = 0.0
        self._weight = self._mean = self._squares = 0.0

    def add(self, now: float, value: float, weight: float) -> None:
        """Take a sample of this weight (above 0) at core time `now`."""
        if now - self._at > _SAME_AGE_S:
            self._fade(now)
        self._weight += weight
        off = value - self._mean
        self._mean += off * weight / self._weight
        self._squares += weight * off * (value - self._mean)

    def _fade(self, now: float) -> None:
        kept = exp((self._at - now) / _SPREAD_MEMORY_S)
        self._at = now
        self._weight *= kept
        self._squares *= kept

    def lately(self, now: float) -> "Spread":
        """Return this one, or one without samples where none has come for two minutes at core time `now`."""
        return self if now - self._at <= _MOST_SILENT_S else Spread()

    @property
    def mean(self) -> float | None:
        """The mean of about the last minute, None before the first sample."""
        return self._mean if self._weight else None

    @property
    def variance(self) -> float | None:
        """The variance of about the last minute in the square of the unit, None before the first sample."""
        return self._squares / self._weight if self._weight else None

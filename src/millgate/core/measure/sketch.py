"""Quantiles and the mean of a stream of positive numbers, in bounded memory, forgetting the old.

A histogram with logarithmic bins between two fixed ends (Masson, Rim and Lee, DDSketch, VLDB 2019). Inside the bin that
holds a quantile the weight is taken as even, so that a limit which steers by it sees no steps. Instead of old samples
fading the weight of new ones grows (Cormode, Shkapenyuk, Srivastava and Xu, Forward Decay, ICDE 2009).
"""

from math import ceil, exp, log
from typing import Final

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

    __slots__ = ("_bins", "_growth", "_known", "_last", "_log", "_sum", "_top", "_total", "_weight", "least")

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
        bins[place] += weight
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

"""A cumulative sum that sees a small lasting shift long before any single sample is remarkable (Page, 1954).

S <- max(0, S + value - reference). It hovers near 0 while the mean is below the reference, and climbs by the
difference with every sample once the mean is above it. Where it last was 0 is the best guess of when that began.
"""

from math import log


class Cusum:
    """The one-sided cumulative sum of what exceeds a reference, in the unit of the samples."""

    __slots__ = ("since", "total")

    def __init__(self, now: float) -> None:
        self.total = 0.0
        self.since = now

    def add(self, now: float, excess: float, most: float) -> None:
        """Learn by how much one sample exceeds the reference; the sum is held at `most`, so that it can come down."""
        total = self.total + excess
        if total > 0.0:
            self.total = min(total, most)
        else:
            self.total = 0.0
            self.since = now


def alarm_threshold(variance: float, allowance: float, samples_between: float) -> float:
    """Return the height that a calm sum reaches once in so many samples.

    Calm means independent samples of this variance whose mean lies `allowance` below the reference. From Wald's
    approximation of the average run length, variance / (2 allowance^2) x exp(2 allowance h / variance)
    (Siegmund, Sequential Analysis, 1985, without the correction for overshoot).
    """
    odds = 2.0 * allowance * allowance * samples_between / variance
    return variance / (2.0 * allowance) * log(max(odds, 2.0))

"""A mean that forgets: exponentially weighted mean and variance with a prior that a few samples outweigh."""

from math import sqrt
from typing import Final

MEMORY: Final = 200.0
"""Samples after which an old one weighs 1/e: the mean of what varies as much as itself is then known to 7 %."""


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

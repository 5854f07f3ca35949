"""Quantiles in a fixed number of counters, of everything or of the newest.

A histogram with logarithmic buckets (Masson, Rim and Lee, DDSketch, VLDB 2019). Inside the bucket that holds the
quantile the weight is taken as even, so that a limit which steers by it does not see steps.
"""

from math import exp, inf, log
from typing import Final

# From 0.0001 to 100 in steps of 5 %: 284 counters, whether the numbers are seconds or ratios.
_LEAST: Final = 1e-4
_MOST: Final = 100.0
_WIDTH: Final = log(1.05)
_BUCKETS: Final = int(log(_MOST / _LEAST) / _WIDTH) + 1
# A float holds far more; what is left of the oldest by then is nothing.
_RESCALE_AT: Final = 1e12


class ForgettingSketch:
    """Quantiles of positive numbers; what lies outside 0.0001..100 counts at that edge.

    A number weighs 1 - 1/`memory` of the one after it, so the newest `memory` numbers or so decide; without a
    memory all weigh the same. Instead of fading every counter the next number weighs more.
    """

    __slots__ = ("_growth", "_total", "_weight", "_weights")

    def __init__(self, memory: float = inf) -> None:
        self._growth = 1.0 / (1.0 - 1.0 / memory)
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._weights = [0.0] * _BUCKETS
        self._weight = 1.0
        self._total = 0.0

    def fade(self, share: float) -> None:
        """Let everything that was counted weigh this share (0..1, not 0) of what it did."""
        self._weight /= share

    @property
    def samples(self) -> float:
        """How many numbers the quantiles rest on; never more than the memory."""
        return self._total / self._weight

    def add(self, value: float) -> None:
        """Count one number."""
        bucket = int(log(value / _LEAST) / _WIDTH) if value > _LEAST else 0
        self._weight *= self._growth
        self._weights[min(bucket, _BUCKETS - 1)] += self._weight
        self._total += self._weight
        if self._weight > _RESCALE_AT:
            self._weights = [weight / _RESCALE_AT for weight in self._weights]
            self._total /= _RESCALE_AT
            self._weight /= _RESCALE_AT

    def quantile(self, share: float) -> float | None:
        """Return the number below which this share lies, within 5 %; None before the first number."""
        if self._total == 0.0:
            return None
        rest, last = share * self._total, 0
        for bucket, weight in enumerate(self._weights):
            if weight > 0.0:
                if rest <= weight:
                    return _LEAST * exp((bucket + rest / weight) * _WIDTH)
                last = bucket
            rest -= weight
        return _LEAST * exp((last + 1) * _WIDTH)

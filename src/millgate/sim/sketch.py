"""Quantiles in bounded memory: a histogram with logarithmic buckets (Masson, Rim and Lee, DDSketch, VLDB 2019)."""

from math import ceil, exp, log

# Any quantile is right within this share; 1 % needs some 1,400 buckets from a microsecond to a week.
RELATIVE_ERROR = 0.01
_WIDTH = log((1.0 + RELATIVE_ERROR) / (1.0 - RELATIVE_ERROR))
# What is shorter counts as zero.
_SMALLEST = 1e-6


class ResultSketch:
    """Count, sum, extremes and quantiles of positive numbers; memory grows with their range, not their number."""

    __slots__ = ("_buckets", "_zeros", "count", "most", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.most = 0.0
        self._zeros = 0
        self._buckets: dict[int, int] = {}

    def add(self, value: float) -> None:
        """Count one number; what is not positive counts as zero."""
        self.count += 1
        if value < _SMALLEST:
            self._zeros += 1
            return
        self.total += value
        if value > self.most:  # noqa: PLR1730 - max() would cost a call for every number
            self.most = value
        bucket = ceil(log(value) / _WIDTH)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    @property
    def mean(self) -> float:
        """The mean, 0 before the first number."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """Return the number below which this share lies, within `RELATIVE_ERROR`; 0 before the first number."""
        rank = share * (self.count - 1)
        seen = self._zeros
        if self.count == 0 or rank < seen:
            return 0.0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if rank < seen:
                return min(
                    self.most, 2.0 * exp((bucket - 0.5) * _WIDTH) / (exp(_WIDTH / 2) + exp(-_WIDTH / 2))
                )
        return self.most

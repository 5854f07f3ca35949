"""Envoy's gradient controller: latency against a minimum measured with the gate all but shut; no product code.

g = clamp(1.25 minimum / latency, 0.5, 2); L <- L g + sqrt(L g). The minimum is measured in windows in which the
limit is pinned to 3; five windows in a row at 3 measure it again, whatever the reason. What began before the
limit was pinned does not count, so the measurement waits until no more than three streams run.
"""

from math import sqrt

from lab.limiters.moving import MovingLimit
from millgate.core.limits.gate import LimitReading

PINNED = 3
_BUFFER = 0.25
_MOST_AT_MINIMUM = 5


class EnvoyLimit(MovingLimit):
    """Compares latency with its measured minimum; latency is the p90 TPOT of the reading."""

    def __init__(self, hard_cap: int = 1000) -> None:
        super().__init__(hard_cap, PINNED, PINNED)
        self.minimum_s: float | None = None
        self._at_minimum = 0

    def observe(self, reading: LimitReading) -> None:
        """Measure the minimum while pinned; else move by the gradient."""
        latency_s = reading.tpot_s
        if latency_s is None:
            return
        if self.minimum_s is None:
            if reading.max_inflight <= PINNED:
                self.minimum_s = latency_s
            return
        gradient = min(2.0, max(0.5, (1.0 + _BUFFER) * self.minimum_s / latency_s))
        self._move_to(self._level * gradient + sqrt(self._level * gradient))
        self._at_minimum = self._at_minimum + 1 if self._level <= PINNED else 0
        if self._at_minimum >= _MOST_AT_MINIMUM:
            self.minimum_s, self._at_minimum = None, 0

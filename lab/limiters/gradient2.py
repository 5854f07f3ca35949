"""Netflix's Gradient2: latency against its own long average; a baseline, no product code.

long = average of 600 samples (the first ten plainly), faded by 5 % where it is over twice the short one.
G = clamp(1.5 long / short, 0.5, 1). L <- 0.8 L + 0.2 (L g + 4). It takes no notice of drops.
"""

from lab.limiters.moving import MovingLimit
from millgate.core.limits.gate import LimitReading

_LONG = 2.0 / (600.0 + 1.0)
_WARM_UP = 10


class Gradient2Limit(MovingLimit):
    """Compares latency with its average over 600 windows; latency is the p90 TPOT of the reading."""

    def __init__(self, hard_cap: int = 1000, start: int = 20, minimum: int = 20) -> None:
        super().__init__(hard_cap, start, minimum)
        self._long_s = 0.0
        self._samples = 0

    def observe(self, reading: LimitReading) -> None:
        """Move by the ratio of long and short latency; half-used limits stay."""
        short_s = reading.tpot_s
        if short_s is None:
            return
        self._samples += 1
        weight = max(_LONG, 1.0 / self._samples) if self._samples <= _WARM_UP else _LONG
        self._long_s += weight * (short_s - self._long_s)
        if self._long_s > 2.0 * short_s:
            self._long_s *= 0.95
        if 2 * reading.max_inflight >= self._level:
            gradient = min(1.0, max(0.5, 1.5 * self._long_s / short_s))
            self._move_to(0.8 * self._level + 0.2 * (self._level * gradient + 4.0))

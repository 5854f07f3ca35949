"""Do more streams bring more tokens? The sign that an engine is beyond its knee, whatever its gauges say.

Uber's Cinnamon and failsafe-go's adaptive limiter watch the same correlation; here with tokens that were measured,
where inflight / latency would find its own division again.
"""

from collections import deque
from math import sqrt

_WINDOWS = 50
# What moves by less than a hundredth of its mean says nothing (failsafe-go).
_LEAST_VARIATION = 0.01
# Any negative value, as G2 has it, also cuts sound limits, for waves of long prompts correlate too: three profiles
# lose 7 % of their tokens, and the variation of the limit grows from 0.09 to 0.21. At -0.5 they lose nothing.
_MOST_NEGATIVE = -0.5


class Throughput:
    """Inflight and measured tokens a second over the last fifty windows."""

    __slots__ = ("_pairs",)

    def __init__(self) -> None:
        self._pairs: deque[tuple[float, float]] = deque(maxlen=_WINDOWS)

    def add(self, inflight: float, tokens_per_s: float) -> None:
        """Learn one window."""
        self._pairs.append((inflight, tokens_per_s))

    def falls(self) -> bool:
        """Return whether tokens a second fall as streams are added; False until fifty windows are there."""
        return len(self._pairs) == _WINDOWS and self._correlation() < _MOST_NEGATIVE

    def _correlation(self) -> float:
        count = len(self._pairs)
        mean_x = sum(x for x, _ in self._pairs) / count
        mean_y = sum(y for _, y in self._pairs) / count
        spread_x = sqrt(sum((x - mean_x) ** 2 for x, _ in self._pairs) / count)
        spread_y = sqrt(sum((y - mean_y) ** 2 for _, y in self._pairs) / count)
        if spread_x <= _LEAST_VARIATION * mean_x or spread_y <= _LEAST_VARIATION * mean_y:
            return 0.0
        together = sum((x - mean_x) * (y - mean_y) for x, y in self._pairs) / count
        return together / (spread_x * spread_y)

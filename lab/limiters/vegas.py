"""TCP Vegas for concurrency, as Netflix's VegasLimit has it: a baseline, no product code.

q = ceil(L (1 - least / latency)) estimates the queue. With l = max(1, int(log10 L)) the limit grows by 6 l while
q <= l, by l while q < 3 l, and falls by l where q > 6 l. The least latency is a minimum over time; `probes`
replaces it by the sample at hand every 30 L updates times a random share of 0.5..1.
"""

from math import ceil, log10
from random import Random

from lab.limiters.moving import MovingLimit
from millgate.core.limits.gate import LimitReading


class VegasLimit(MovingLimit):
    """Compares latency with the least ever seen; latency is the p90 TPOT of the reading."""

    def __init__(self, hard_cap: int = 1000, start: int = 20, *, probes: bool = False, seed: int = 0) -> None:
        super().__init__(hard_cap, start)
        self._dice = Random(seed) if probes else None
        self._least_s: float | None = None
        self._until_probe = self._probe_after()

    def observe(self, reading: LimitReading) -> None:
        """Move by the estimated queue; half-used limits stay."""
        latency_s = reading.tpot_s
        if latency_s is None:
            return
        self._until_probe -= 1.0
        if self._until_probe <= 0.0:
            self._least_s, self._until_probe = latency_s, self._probe_after()
        elif self._least_s is None or latency_s < self._least_s:
            self._least_s = latency_s
        else:
            self._follow(self._least_s / latency_s, reading)

    def _follow(self, share: float, reading: LimitReading) -> None:
        level = self._level
        step = max(1, int(log10(level)))
        queue = ceil(level * (1.0 - share))
        if reading.failures:
            self._move_to(level - step)
        elif 2 * reading.max_inflight < level:
            return
        elif queue <= step:
            self._move_to(level + 6 * step)
        elif queue < 3 * step:
            self._move_to(level + step)
        elif queue > 6 * step:
            self._move_to(level - step)

    def _probe_after(self) -> float:
        return float("inf") if self._dice is None else self._dice.uniform(0.5, 1.0) * 30.0 * self._level

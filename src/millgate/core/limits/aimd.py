"""The plain limit: more while all is well, a tenth less at any sign of overload.

Additive increase, multiplicative decrease (Chiu and Jain 1989), with the constants of Netflix's AIMDLimit. They are 0.9
on a drop or a latency above the threshold, + 1 where at least half is in use. Without an SLO gauges and errors are the
signs, and an engine that says that nothing waits has room. There the limit grows by its root, from 8 to 200 in half a
minute.
"""

from math import sqrt

from millgate.core.limits.gate import LimitReading
from millgate.core.limits.signal import LEAST_SAMPLES, OVERLOAD_RATIO, AdaptiveLimit, overloaded


class AimdLimit(AdaptiveLimit):
    """Moves by windows; `tpot_slo_s` is the TPOT of a reading that counts as overload, above 0, None for none."""

    def __init__(
        self, hard_cap: int, start: int, minimum: int = 1, *, tpot_slo_s: float | None = None
    ) -> None:
        super().__init__(hard_cap, start, minimum)
        self._tpot_slo_s = tpot_slo_s

    def observe(self, reading: LimitReading) -> None:
        """Fall by a tenth, grow by one or by the root, or stay where too few samples or streams say nothing."""
        slo_s, tpot_s = self._tpot_slo_s, reading.tpot_s
        is_sampled = reading.samples >= LEAST_SAMPLES
        is_slow = is_sampled and slo_s is not None and tpot_s is not None and tpot_s > slo_s
        if is_slow or overloaded(reading):
            self._cut(reading, OVERLOAD_RATIO)
        elif is_sampled and 2 * reading.max_inflight >= self._level:
            has_room = slo_s is None and reading.waiting == 0
            self._move_to(self._level + (sqrt(self._level) if has_room else 1.0))

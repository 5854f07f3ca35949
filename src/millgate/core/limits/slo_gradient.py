"""A limit pinned to the TPOT that users are promised, not to the TPOT of an idle engine.

Continuous batching makes every token slower with every stream, so a limiter that compares with latency at rest (Vegas,
Gradient2, Envoy's gradient) gives away half of an engine's throughput. This one asks only whether users get what they
were promised (algorithm G2; Envoy ships the idea as its pinned gradient):

    t = 0.955 x tpot_slo
    g = t / TPOT above t, 2 - TPOT / t below it, 1 + 1 / sqrt(L) at most
    L <- 0.65 L + 0.35 L g

with the TPOT that the promised share of answers keeps: p90 unless a quantile is named.

The step is the same as far above the target as below it: a limit that sways between two whole streams would otherwise be
drawn to the upper one. G2 adds the root at any gradient above 1 and grows eight times as fast as it falls at two streams.

It grows only while more than half of it is in use, and never probes. It never learns what latency *should* be, so a bad
hour teaches it nothing and there is no baseline to drift.
"""

from math import sqrt

from millgate.core.limits.gate import LimitReading
from millgate.core.limits.signal import LEAST_SAMPLES, OVERLOAD_RATIO, AdaptiveLimit, overloaded

TARGET = 0.955
"""Share of the SLO that is steered for, the rest being for luck; 0.9 in G2, which steers the p90 of seconds."""
# A third of the way in a window, where G2 has a fifth.
BLEND = 0.35
"""How far a limit goes in a window towards where it should be."""
# Where the engine shows no queue, first tokens later than predicted by this much are one. Full healthy batches
# show 0.1 to 0.3 s at their p90; an engine that runs 16 of what it is sent let the limit grow to 2,000 without.
_MOST_EXCESS_S = 1.0


class SloGradientLimit(AdaptiveLimit):
    """Steers the TPOT of its readings to just below `tpot_slo_s`, which is above 0."""

    def __init__(self, tpot_slo_s: float, hard_cap: int, start: int, minimum: int = 1) -> None:
        super().__init__(hard_cap, start, minimum)
        self._target_s = TARGET * tpot_slo_s

    def observe(self, reading: LimitReading) -> None:
        """Move one step, see the formula above: at most a third down, and up only while in use."""
        queues_unseen = reading.waiting is None and (reading.ttft_excess_p90_s or 0.0) > _MOST_EXCESS_S
        if queues_unseen or overloaded(reading):
            self._cut(reading, OVERLOAD_RATIO)
        elif reading.samples >= LEAST_SAMPLES and reading.tpot_s is not None:
            self._steer(reading, reading.tpot_s / self._target_s)

    def _steer(self, reading: LimitReading, slowness: float) -> None:
        level, ran = self._level, reading.max_inflight
        if slowness >= 1.0:
            # Where more runs than is allowed, the TPOT is that of what runs, and so is the aim.
            self._move_to(min(level, level + BLEND * (max(level, float(ran)) / slowness - level)))
        elif 2 * ran > level:
            self._move_to(level + BLEND * min((1.0 - slowness) * level, sqrt(level)))

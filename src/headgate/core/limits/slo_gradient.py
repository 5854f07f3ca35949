"""A limit pinned to the TPOT that users are promised, not to the TPOT of an idle engine.

Continuous batching makes every token slower with every stream, well below the knee, so a limiter that compares
with latency at rest (Vegas, Gradient2, Envoy's gradient) gives away half of an engine's throughput. This one asks
only whether what users get is what they were promised (algorithm G2; Envoy ships the idea as its pinned gradient):

    g = clamp(0.94 x tpot_slo / p90 TPOT, 0.7, 1.1)
    L <- 0.8 L + 0.2 (L g + sqrt(L) x (g - 1) / 0.1 where g > 1)

It grows only while more than half of it is in use, never probes, and learns nothing from a window of fewer than
ten samples: what nobody uses stays as it was. It never learns what latency *should* be, so a bad hour teaches it
nothing and there is no baseline to drift.
"""

from collections import deque
from math import sqrt

from headgate.core.limits.adaptive import OVERLOAD_RATIO, AdaptiveLimit, overloaded
from headgate.core.limits.base import LimitReading
from headgate.core.limits.signal import FEWEST_SAMPLES
from headgate.core.limits.throughput import Throughput

TARGET = 0.94
"""Share of the SLO to steer for.

0.9 in G2. What is steered here is the p90 of whole answers, not of seconds. Three profiles, an SLO of twice the TPOT of
a lone stream: with 0.94 p90 ends at 0.987 of it in mean with 0.99 of the best fixed limit's tokens, with 0.9 at 0.943
with 0.94 of them.
"""
_LEAST_GRADIENT, _MOST_GRADIENT = 0.7, 1.1
_BLEND = 0.2
# The limit is never above five times the most that ran in the last minute (G2), or its start if that is more: what
# grew long ago under another load is forgotten, but no quiet hour leaves less than a cold start would give. Four
# quiet minutes before a burst on an 8B model: 3,320 tokens a second in its first half minute; 1,800 without this.
_PEAK_S = 60.0
_PEAK_RATIO = 5.0
# Where the engine shows no queue, first tokens later than predicted by this much are one. Full healthy batches
# show 0.1 to 0.3 s at their p90; an engine that runs 16 of what it is sent let the limit grow to 2,000 without.
_MOST_EXCESS_S = 1.0


class SloGradientLimit(AdaptiveLimit):
    """Steers p90 TPOT to just below `tpot_slo_s`. ValueError when that is not above 0."""

    def __init__(self, tpot_slo_s: float, hard_cap: int, start: int, minimum: int = 1) -> None:
        if not tpot_slo_s > 0.0:
            raise ValueError(f"tpot_slo must be above 0, not {tpot_slo_s:g} s")
        super().__init__(hard_cap, start, minimum)
        self._tpot_slo_s = tpot_slo_s
        self._start = start
        self._throughput = Throughput()
        self._peaks: deque[tuple[float, int]] = deque()

    def observe(self, reading: LimitReading) -> None:
        """Move one step, see the formula above: at most a tenth down, and up only while in use."""
        self._throughput.add(float(reading.max_inflight), reading.output_tokens_per_s)
        if overloaded(reading) or _queues_unseen(reading):
            self._cut(reading, OVERLOAD_RATIO)
        elif reading.samples >= FEWEST_SAMPLES and reading.tpot_p90_s is not None:
            self._steer(reading, reading.tpot_p90_s)
        self._follow_peak(reading)

    def _steer(self, reading: LimitReading, tpot_p90_s: float) -> None:
        gradient = min(_MOST_GRADIENT, max(_LEAST_GRADIENT, TARGET * self._tpot_slo_s / tpot_p90_s))
        level = self._level
        if self._throughput.falls():
            self._cut(reading, OVERLOAD_RATIO)
        elif gradient <= 1.0:
            self._cut(reading, 1.0 - _BLEND * (1.0 - gradient))
        elif 2 * reading.max_inflight > level:
            # G2 adds the whole root at any gradient above 1. Near the target that makes every second window a
            # step of 0.2 sqrt(L) up, and p90 settles 1 % (SLO of twice a lone stream) to 1.5 % (four times) higher.
            headroom = sqrt(level) * (gradient - 1.0) / (_MOST_GRADIENT - 1.0)
            self._move_to((1.0 - _BLEND) * level + _BLEND * (level * gradient + headroom))

    def _follow_peak(self, reading: LimitReading) -> None:
        peaks = self._peaks
        peaks.append((reading.now, reading.max_inflight))
        while peaks[0][0] <= reading.now - _PEAK_S:
            peaks.popleft()
        most = _PEAK_RATIO * max(peak for _, peak in peaks)
        self._move_to(min(self._level, max(most, float(self._start))))


def _queues_unseen(reading: LimitReading) -> bool:
    """Return whether first tokens come so late that the engine must be queueing, where its gauge is missing."""
    excess_s = reading.ttft_excess_p90_s
    return reading.waiting is None and excess_s is not None and excess_s > _MOST_EXCESS_S

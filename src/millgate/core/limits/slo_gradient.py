"""A limit pinned to the TPOT that users are promised, not to the TPOT of an idle engine.

Continuous batching makes every token slower with every stream, well below the knee, so a limiter that compares
with latency at rest (Vegas, Gradient2, Envoy's gradient) gives away half of an engine's throughput. This one asks
only whether what users get is what they were promised (algorithm G2; Envoy ships the idea as its pinned gradient):

    t = (0.974 - 0.06 x how far p90 TPOT lies above its mean) x tpot_slo
    g = t / p90 TPOT above t, 2 - p90 TPOT / t below it, 1.05 + 0.5 / sqrt(L) at most
    L <- 0.6 L + 0.4 L g

As far above the target as below it the step is the same, for what sways between two whole streams must not be drawn
to the upper one. G2 adds sqrt(L) at any gradient above 1, which at two streams grows eight times as fast as it falls:
where code is completed the mean of p90 TPOT then stood 3 to 8 % above what was steered for. Here that root is only the
most that a limit grows in a window.

It grows only while more than half of it is in use, never probes, and learns nothing from a window of fewer than
ten samples: a limit that no request uses stays as it was. It never learns what latency *should* be, so a bad hour teaches it
nothing and there is no baseline to drift.
"""

from collections import deque
from math import sqrt

from millgate.core.limits.adaptive import OVERLOAD_RATIO, AdaptiveLimit, overloaded
from millgate.core.limits.base import LimitReading
from millgate.core.limits.signal import FEWEST_SAMPLES
from millgate.core.limits.throughput import Throughput

TARGET = 0.974
"""Share of the SLO that is steered for where all answers are alike; 0.9 in G2.

What is steered is the p90 of whole answers, not of seconds, and its mean is where it is steered: the rest is for luck.
"""
# The longer the tail, the less certain is its p90: 0.965 in conversations, 0.94 where code is completed. With 0.97 for all
# p90 of those ends at 1.01 of an SLO of two and three times a lone stream's TPOT in mean, with this at 0.99.
_LESS_PER_TAIL = 0.06
# Two fifths of the way in a window, where G2 has a fifth. Up by as little as in G2, a fiftieth and a fifth of the root.
_BLEND = 0.4
_MOST_GRADIENT = 1.05
_MOST_ROOTS = 0.5
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
        """Move one step, see the formula above: at most two fifths down, and up only while in use."""
        self._throughput.add(float(reading.max_inflight), reading.output_tokens_per_s)
        if overloaded(reading) or _queues_unseen(reading):
            self._cut(reading, OVERLOAD_RATIO)
        elif reading.samples >= FEWEST_SAMPLES and reading.tpot_p90_s is not None:
            self._steer(reading, reading.tpot_p90_s)
        self._follow_peak(reading)

    def _steer(self, reading: LimitReading, tpot_p90_s: float) -> None:
        level = self._level
        gradient = _gradient(_target(reading.tpot_tail) * self._tpot_slo_s, tpot_p90_s)
        gradient = min(_MOST_GRADIENT + _MOST_ROOTS / sqrt(level), gradient)
        if self._throughput.falls():
            self._cut(reading, OVERLOAD_RATIO)
        elif gradient <= 1.0:
            # Where more runs than is allowed, the TPOT is that of what runs, and so is the aim; the limit goes there
            # without waiting for answers to end.
            aim = gradient * max(level, float(reading.max_inflight))
            self._move_to(min(level, (1.0 - _BLEND) * level + _BLEND * aim))
        elif 2 * reading.max_inflight > level:
            self._move_to((1.0 - _BLEND) * level + _BLEND * gradient * level)

    def _follow_peak(self, reading: LimitReading) -> None:
        peaks = self._peaks
        peaks.append((reading.now, reading.max_inflight))
        while peaks[0][0] <= reading.now - _PEAK_S:
            peaks.popleft()
        most = _PEAK_RATIO * max(peak for _, peak in peaks)
        self._move_to(min(self._level, max(most, float(self._start))))


def _target(tail: float) -> float:
    """Return the share of the SLO to steer for; no tail that lasts is as long as 6, and half is aimed at in any case."""
    return max(0.5, TARGET - _LESS_PER_TAIL * (tail - 1.0))


def _gradient(target_s: float, tpot_p90_s: float) -> float:
    """Return the target over what is measured above it, and as much more than 1 as far below it."""
    return target_s / tpot_p90_s if tpot_p90_s > target_s else 2.0 - tpot_p90_s / target_s


def _queues_unseen(reading: LimitReading) -> bool:
    """Return whether first tokens come so late that the engine must be queueing, where its gauge is missing."""
    excess_s = reading.ttft_excess_p90_s
    return reading.waiting is None and excess_s is not None and excess_s > _MOST_EXCESS_S

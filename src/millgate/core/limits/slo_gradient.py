"""A limit pinned to the TPOT that users are promised, not to the TPOT of an idle engine.

Continuous batching makes every token slower with every stream, well below the knee, so a limiter that compares
with latency at rest (Vegas, Gradient2, Envoy's gradient) gives away half of an engine's throughput. This one asks
only whether what users get is what they were promised (algorithm G2; Envoy ships the idea as its pinned gradient):

    g = clamp(1 + e x distance of p90 TPOT to (1 - m) x tpot_slo, 0.3, 1.05 + 0.5 / sqrt(L))
    L <- 0.6 L + 0.4 L g

The elasticity e is how many hundredths of the streams make a hundredth of the TPOT. Where TPOT = base + slope x
streams that is TPOT / (slope x streams): 2 at twice a lone stream's TPOT, 3 at 1.5 times. G2 has 1, as if there were
no base; a limit that must come down by half then goes a quarter of the way and waits to see. The margin m is 0.028 -
0.006 x ln e and 0.06 of how far the p90 of answers lies above their mean, half of that at most.

As far above the target as below it the step is the same, for what sways between two whole streams must not be drawn
to the upper one. G2 adds sqrt(L) at any gradient above 1, which at two streams grows eight times as fast as it falls:
where code is completed the mean of p90 TPOT then stood 3 to 8 % above what was steered for. Here that root is only the
most that a limit grows in a window.

It grows only while more than half of it is in use, never probes, and learns nothing from a window of fewer than
ten samples: what nobody uses stays as it was. It never learns what latency *should* be, so a bad hour teaches it
nothing and there is no baseline to drift.
"""

from collections import deque
from math import log, sqrt

from millgate.core.limits.adaptive import OVERLOAD_RATIO, AdaptiveLimit, overloaded
from millgate.core.limits.base import LimitReading
from millgate.core.limits.signal import FEWEST_SAMPLES
from millgate.core.limits.throughput import Throughput

TARGET = 0.97
"""Share of the SLO that a cold start aims at, and whoever knows nothing of how answers spread; 0.9 in G2."""
# What is steered here is the p90 of whole answers, not of seconds, and its mean is where it is steered; the margin is for
# luck. The larger the elasticity, the more tokens a margin of TPOT costs. The longer the tail, the less certain is its
# p90, of four hundred answers by 2 % in conversations and by 4 % where code is completed, and what is read from luck
# moves the limit: without the last term p90 of those ends at 0.99 to 1.00 of the SLO in mean and eight of 24 means of a
# profile lie above it, with it at 0.97 to 0.99 and five.
_MARGIN = 0.028
_LESS_PER_LOG_ELASTICITY = 0.006
_MORE_PER_TAIL = 0.06
# The more alike all answers are, the less luck there is to leave room for: short prompts (chat arena) have a p90 2 %
# above the mean, and 0.04 took a tenth of their tokens at 1.5 times a lone stream's TPOT, a third at 1.2 times.
_MOST_PER_TAIL = 0.5
# And as much as G2 has of everybody.
_LEAST_MARGIN, _MOST_MARGIN = 0.01, 0.1
# Two fifths of the way in a window, where G2 has a fifth: with that p90 of single runs varies by 0.018 instead of 0.014
# at an SLO of 1.5 times a lone stream's TPOT, for what is read from luck is taken back too late. Up by as little as in
# G2, a fiftieth and a fifth of the root; down to 0.3, where G2 has 0.7: from thirty times what is feasible a slow
# engine then has p90 at 1.02 of the SLO after the first minute.
_BLEND = 0.4
_LEAST_GRADIENT, _MOST_GRADIENT = 0.3, 1.05
_MOST_ROOTS = 0.5
# Beyond three the line is believed no more for a step, or with a slope that is far too small the limit would swing; and
# beyond twenty no more for the margin.
_MOST_ELASTIC_STEP, _MOST_ELASTIC = 3.0, 20.0
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
        """Move one step, see the formula above: at most two sevenths down, and up only while in use."""
        self._throughput.add(float(reading.max_inflight), reading.output_tokens_per_s)
        if overloaded(reading) or _queues_unseen(reading):
            self._cut(reading, OVERLOAD_RATIO)
        elif reading.samples >= FEWEST_SAMPLES and reading.tpot_p90_s is not None:
            self._steer(reading, reading.tpot_p90_s)
        self._follow_peak(reading)

    def _steer(self, reading: LimitReading, tpot_p90_s: float) -> None:
        level = self._level
        elasticity = _elasticity(reading, tpot_p90_s)
        distance = _distance(_target(reading, elasticity) * self._tpot_slo_s, tpot_p90_s)
        gradient = 1.0 + min(_MOST_ELASTIC_STEP, elasticity) * distance
        gradient = min(_MOST_GRADIENT + _MOST_ROOTS / sqrt(level), max(_LEAST_GRADIENT, gradient))
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


def _target(reading: LimitReading, elasticity: float) -> float:
    """Return the share of the SLO to steer for."""
    if reading.tpot_tail is None:
        return TARGET
    tail = reading.tpot_tail - 1.0
    margin = _MARGIN - _LESS_PER_LOG_ELASTICITY * log(elasticity) + _MORE_PER_TAIL * tail
    return 1.0 - min(_MOST_MARGIN, max(_LEAST_MARGIN, min(margin, _MOST_PER_TAIL * tail)))


def _distance(target_s: float, tpot_p90_s: float) -> float:
    """Return how far the target lies above (or below) what is: as much less than one, whichever is the smaller."""
    if tpot_p90_s < target_s:
        return 1.0 - tpot_p90_s / target_s
    return target_s / tpot_p90_s - 1.0


def _elasticity(reading: LimitReading, tpot_p90_s: float) -> float:
    """Return how many hundredths of the streams make a hundredth of the TPOT, 1 to 20; 1 where the line is unknown."""
    streams_s = (reading.tpot_p90_per_stream_s or 0.0) * reading.max_inflight
    return min(_MOST_ELASTIC, max(1.0, tpot_p90_s / streams_s)) if streams_s > 0.0 else 1.0


def _queues_unseen(reading: LimitReading) -> bool:
    """Return whether first tokens come so late that the engine must be queueing, where its gauge is missing."""
    excess_s = reading.ttft_excess_p90_s
    return reading.waiting is None and excess_s is not None and excess_s > _MOST_EXCESS_S

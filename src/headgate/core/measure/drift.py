"""Is a noisy load on its way past 1: a CUSUM whose reference and threshold follow from the load's own calm.

The reference lies between the calm level and 1, for a sum against 1 itself would see a ramp only when it is over.
The threshold is the height that calm noise would reach once in a stated time, so a small system with few large
requests is given more time to prove itself than a large one, and nobody has to tune it.
"""

from math import inf, sqrt

from headgate.core.measure.cusum import Cusum, alarm_threshold
from headgate.core.measure.ewma import Ewma

# The reference lies this share of the way from the calm level to 1, for a calm level of `_BUSY_LOAD` or more.
# Tried on simulated ramps: 0.3 to 0.6 differ by less than a second in delay.
_REFERENCE_SHARE = 0.4
# Loads below this are no matter, however much of a change they are.
_BUSY_LOAD = 0.8
# A system that is calm within this of its reference would never settle.
_LEAST_ALLOWANCE = 0.05
# The calm level and its noise are those of about the last five minutes.
_CALM_MEMORY_S = 300.0
# One sample counts at most this many deviations above the reference, and for at most this share of the threshold:
# one huge prompt is no trend.
_MOST_DEVIATIONS = 4.0
_MOST_AT_ONCE = 0.75
# The least noise that is believed, in loads a second: traffic more regular than this is a test.
_LEAST_DEVIATION = 0.01
# Seconds of calm that must have been seen before the noise is known.
_LEARNING_S = 30.0


class Drift:
    """Watches one load (1 is capacity), sampled about once a second; `calm_between_s` is the time per false alarm."""

    __slots__ = ("_calm", "_calm_between_s", "_excess", "_noise", "_previous", "_started_at", "threshold")

    def __init__(self, now: float, calm_between_s: float) -> None:
        self._started_at = now
        self._calm_between_s = calm_between_s
        self._previous: float | None = None
        self._calm = Ewma(0.0, memory=_CALM_MEMORY_S, prior_samples=0.0)
        self._noise = Ewma(0.0, memory=_CALM_MEMORY_S, prior_samples=0.0)
        self._excess = Cusum(now)
        self.threshold = inf

    def add(self, now: float, load: float, passed_s: float) -> None:
        """Learn the mean load of the `passed_s` seconds before `now`."""
        previous = self._previous
        if previous is None:
            self._previous = load
            return
        calm, variance = self.calm, self._variance()
        reference = self.reference
        allowance = max(reference - calm, _LEAST_ALLOWANCE)
        self.threshold = alarm_threshold(variance, allowance, self._calm_between_s)
        load = min(load, reference + _MOST_DEVIATIONS * sqrt(variance / passed_s))
        excess = min((load - reference) * passed_s, _MOST_AT_ONCE * self.threshold)
        # What is held at twice the threshold comes down again soon after the load does.
        self._excess.add(now, excess, 2.0 * self.threshold)
        # A sum that is on its way up is no calm to learn from.
        if self._excess.total < 0.5 * self.threshold:
            self._calm.add(load)
            # Half the mean squared difference of neighbours is the variance, and a slow trend does not add to it
            # (von Neumann, 1941).
            self._noise.add(0.5 * (load - previous) ** 2 * passed_s)
        self._previous = load

    @property
    def calm(self) -> float:
        """The usual load of the last minutes."""
        return self._calm.mean

    @property
    def deviation(self) -> float:
        """The standard deviation of one second's load."""
        return sqrt(self._variance())

    @property
    def reference(self) -> float:
        """The load above which the sum climbs."""
        calm = self._calm.mean
        return min(1.0, max(_BUSY_LOAD, calm + _REFERENCE_SHARE * (1.0 - calm)))

    @property
    def excess(self) -> float:
        """What has come beyond the reference, in seconds of the whole capacity."""
        return self._excess.total

    @property
    def since(self) -> float:
        """When the excess last was nothing."""
        return self._excess.since

    def is_over(self, now: float) -> bool:
        """Return whether the excess is more than calm explains."""
        return self._excess.total >= self.threshold and now - self._started_at >= _LEARNING_S

    def _variance(self) -> float:
        return max(_LEAST_DEVIATION**2, self._noise.mean)

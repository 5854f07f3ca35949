"""How far does a rate lie above what is usual, and how uneven is what is usual: the two statistics of the early warning."""

from math import exp, inf, log, pi, sqrt
from typing import NamedTuple

from millgate.core.measure.ewma import Ewma

# The flow is cut into pieces of this length, short against the load's moves.
_PIECE_S = 2.0
# The belief that grains come one by one counts as so many pieces.
_PRIOR_PIECES = 3.0


class Noise(NamedTuple):
    """The variance per mean and the third cumulant per variance, in the flow's unit, known from so many samples."""

    dispersion: float
    largest: float
    freedom: float


class Dispersion:
    """Learns the noise of one calm flow, that of a Poisson process of grains; `is_uneven` says that these differ as lengths do.

    Variance = dispersion x mean, over any time that is long against the gaps: with grains of one request for requests that come
    one by one, with larger grains for bursts (for gamma gaps of any variation the first three cumulants agree; Cox, Renewal
    Theory, 1962, chapter 4) and for work in pieces of unequal size.
    """

    def __init__(self, *, is_uneven: bool) -> None:
        self._is_uneven = is_uneven
        self._variance = Ewma(0.0, prior_samples=0.0)
        self._rate = -1.0
        self._amount = self._passed_s = 0.0

    def add(self, amount: float, passed_s: float) -> None:
        """Learn what has come in so many seconds."""
        self._amount += amount
        self._passed_s += passed_s
        if self._passed_s >= _PIECE_S:
            self._end_piece(self._amount / self._passed_s)

    @property
    def variance(self) -> float:
        """The variance of what comes in one second; 0 until it is known."""
        return self._variance.mean

    def noise(self, mean: float, grain: float) -> Noise:
        """Return the noise of a flow of this mean per second and this usual grain.

        Lengths are lognormal as a rule: E[X^3] / E[X^2] is then (E[X^2] / E[X])^2 / E[X]. Neighbours' differences tell as
        much of a variance as two thirds as many independent samples (von Neumann, 1941).
        """
        pieces = self._variance.samples
        learned = self._learned(mean, grain) if mean > 0.0 else grain
        dispersion = grain + (learned - grain) * pieces / (pieces + _PRIOR_PIECES)
        largest = dispersion * dispersion / grain if self._is_uneven and grain > 0.0 else dispersion
        return Noise(dispersion, largest, 2.0 / 3.0 * pieces + _PRIOR_PIECES)

    def _learned(self, mean: float, grain: float) -> float:
        """Return the dispersion over long times, told from that of pieces."""
        seen = self._variance.mean / mean
        if self._is_uneven or grain <= 0.0 or seen <= grain:
            return seen
        return grain * _long_run(seen / grain, mean * _PIECE_S / grain)

    def _end_piece(self, rate: float) -> None:
        """Half the mean squared difference of neighbours is the variance; a slow trend adds nothing to it."""
        if self._rate >= 0.0:
            self._variance.add(0.5 * (rate - self._rate) ** 2 * self._passed_s)
        self._rate = rate
        self._amount = self._passed_s = 0.0


def _long_run(seen: float, arrivals: float) -> float:
    """Return the dispersion of long times, where neighbouring pieces of so many arrivals show `seen` > 1.

    A piece cuts bursts in two. Gamma gaps of squared variation c give counts the variance c n - (c^2 - 1) / 6 (Cox, 1962,
    section 4.5), and neighbours share a burst, so that half their mean squared difference is c n - (c^2 - 1) / 4. This
    solves for c; without it, bursts of two to four requests a second raised three times as many alarms. The law holds for
    pieces of one burst or more, so the root is kept real, and c below 2 n.
    """
    missing = (seen - 0.25 / arrivals) / arrivals
    return max(seen, 2.0 * arrivals * (1.0 - sqrt(max(0.0, 1.0 - missing))))


# Best for ramps that take 11 s from their beginning to where they matter.
_MEMORY_S = 5.0
# The calm rate is that of about the last five minutes.
_CALM_MEMORY_S = 300.0
SAMPLE_S = 0.25
"""How often the flow is looked at: half the time between two looks is lost on the mean."""


def alarm_height(memory_s: float, calm_between_s: float) -> float:
    """Return the log likelihood ratio that the mean of calm noise passes at most once in `calm_between_s`.

    A mean with exponential memory passes z = sqrt(2 h) deviations at the rate z / sqrt(2 pi) x exp(-h) / memory
    (Leadbetter, Lindgren and Rootzen, Extremes, 1983, chapter 12).
    """
    height = 1.0
    for _ in range(20):
        height = max(1.0, log(calm_between_s / memory_s * sqrt(height / pi)))
    return height


class Drift:
    """Watches one flow, in any unit, fed every `SAMPLE_S` or so; `calm_between_s` is the time per false alarm.

    `calm` is the usual rate per second, `recent` the mean rate of the last seconds. `excess` and `threshold` are amounts:
    what has come above the calm of late, and what calm does not explain. `since` is when the flow was last at its calm.
    `is_uneven` says that its grains differ in size as lengths do. Nothing is judged in the first `learning_s`.

    The statistic is an exponentially weighted mean of the last seconds (Roberts, 1959), whose weights agree with those of the
    likelihood ratio of a ramp that began 2.2 memories ago to 0.98. The threshold follows from the noise of the calm.
    """

    def __init__(self, now: float, calm_between_s: float, *, learning_s: float, is_uneven: bool) -> None:
        self._judged_from = now + learning_s
        self._height = alarm_height(_MEMORY_S, calm_between_s)
        self._smoother = self._calm_s = 0.0
        self._dispersion = Dispersion(is_uneven=is_uneven)
        self.calm = self.excess = self.recent = 0.0
        self.threshold = inf
        self.since = now

    def add(self, now: float, amount: float, passed_s: float, grain: float, most_calm: float) -> None:
        """Take what has come in the `passed_s` seconds before `now`, and compare the last seconds with the calm.

        `grain` is the usual amount that comes at once; a rate of more than `most_calm` is no calm.
        """
        rate = amount / passed_s
        if self._calm_s == 0.0:
            self.recent = self._smoother = rate
        share = 1.0 - exp(-passed_s / _MEMORY_S)
        self.recent += share * (rate - self.recent)
        self._smoother += share * (self.recent - self._smoother)
        calm = min(self.calm, most_calm)
        if self.recent <= calm:
            self.since = now
        if now >= self._judged_from and self._calm_s > 0.0:
            self._judge(calm, grain)

    def learn(self, amount: float, passed_s: float, most_calm: float) -> None:
        """Take the same as a part of the calm, which is never more than `most_calm` a second."""
        self._calm_s = min(_CALM_MEMORY_S, self._calm_s + passed_s)
        share = min(1.0, passed_s / self._calm_s)
        self.calm = min(most_calm, self.calm + share * (amount / passed_s - self.calm))
        self._dispersion.add(amount, passed_s)

    def settle(self) -> None:
        """Take what has come of late for the calm from now on."""
        self.calm, self._calm_s = self.recent, 2.0 * _MEMORY_S

    @property
    def level(self) -> float:
        """The rate now, by Brown's double smoothing (1963): no lag behind a ramp, up to 14 % too much of a step."""
        return 2.0 * self.recent - self._smoother

    @property
    def deviation(self) -> float:
        """The standard deviation of one second's amount."""
        return sqrt(self._dispersion.variance)

    @property
    def is_over(self) -> bool:
        """Return whether the excess is more than calm explains."""
        return self.excess >= self.threshold

    def _judge(self, calm: float, grain: float) -> None:
        """Compare the mean of late with a calm rate.

        The mean has the noise of twice its memory, and the calm has its own. The amount at height h lies sqrt(2 h x
        variance) + h x skew / 3 above the expected, as a Poisson tail does (Bernstein's inequality); exponential weights
        make a skew of 4/3 of `largest`. As the variance is known from `freedom` samples only, Student's law takes the
        place of the Gaussian (Abramowitz and Stegun 26.7.5, first term).
        """
        height, length_s = self._height, 2.0 * _MEMORY_S
        noise = self._dispersion.noise(self.calm, grain)
        variance = noise.dispersion * calm * length_s * (1.0 + length_s / self._calm_s)
        doubt = 1.0 + (2.0 * height + 1.0) / (4.0 * noise.freedom)
        self.excess = max(0.0, (self.recent - calm) * length_s)
        self.threshold = sqrt(2.0 * height * variance) * doubt + 4.0 / 9.0 * height * noise.largest


class Acceleration:
    """Watches how a level grows, in shares of a limit, fed every `SAMPLE_S` or so.

    `growth` is the mean growth per second of late. It accelerates by what lies above the usual growth, that of the last
    minutes: `excess`, a second derivative over that time. Noise is the excess of the calm itself: what comes into a level
    leaves it again, so that its growth varies less than the flows do. `since` is when growth was last usual. The first
    `learning_s` fill an empty system, and are no calm.
    """

    def __init__(self, now: float, calm_between_s: float, *, learning_s: float) -> None:
        self._learned_from = now + learning_s
        self._height = alarm_height(_MEMORY_S, calm_between_s)
        self._usual = self._variance = self._calm_s = 0.0
        self.growth = self.excess = 0.0
        self.threshold = inf
        self.since = now

    def add(self, now: float, grown: float, passed_s: float, grain: float) -> None:
        """Take by how much the level has grown in the `passed_s` seconds before `now`; `grain` is one of what comes."""
        self.growth += (1.0 - exp(-passed_s / _MEMORY_S)) * (grown / passed_s - self.growth)
        self.excess = self.growth - self._usual
        if self.excess <= 0.0:
            self.since = now
        # Excesses are alike over two memories. The tail is that of `Drift`: Student's law, and the skew of what comes.
        length_s = 2.0 * _MEMORY_S
        doubt = 1.0 + (2.0 * self._height + 1.0) / (4.0 * (1.0 + self._calm_s / length_s))
        skew = 4.0 / 9.0 * self._height * grain / length_s
        known = self._calm_s >= 3.0 * length_s
        self.threshold = sqrt(2.0 * self._height * self._variance) * doubt + skew if known else inf

    def learn(self, now: float, passed_s: float) -> None:
        """Take the last seconds for a part of the calm."""
        if now < self._learned_from:
            return
        self._calm_s = min(_CALM_MEMORY_S, self._calm_s + passed_s)
        share = min(1.0, passed_s / self._calm_s)
        self._usual += share * (self.growth - self._usual)
        self._variance += share * (self.excess * self.excess - self._variance)

    @property
    def is_over(self) -> bool:
        """Return whether the excess is more than calm explains."""
        return self.excess >= self.threshold

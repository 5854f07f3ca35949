"""Has a noisy flow risen beyond what its own calm explains, and where is it now?

The statistic is an exponentially weighted mean of the last seconds (Roberts, 1959). For a flow that climbs from a level
there is hardly a better one: its weights agree with those of the likelihood ratio of a ramp that began 2.2 memories
ago to 0.98. The threshold follows from the noise of the calm and a stated time per false alarm: nothing is tuned.
"""

from math import exp, inf, log, pi, sqrt

from millgate.core.measure.dispersion import Dispersion

# Best for ramps that take 11 s from their beginning to where they matter: those of 10 s before few requests a second,
# which are called late.
_MEMORY_S = 5.0
# The memory of the level: it says where a climb has come to, and must not be why a large engine is told of it late.
_LEVEL_S = 3.5
# The calm rate is that of about the last five minutes.
_CALM_MEMORY_S = 300.0
SAMPLE_S = 0.25
"""How often the flow is looked at: half the time between two looks is lost on the mean."""

# The third cumulant of a mean with exponential weights, per variance, over that of twice its memory with even weights.
_SKEWER = 4.0 / 3.0
# The mean overshoot of a sum of Gaussian steps over a level, in deviations of a step (Siegmund, 1985, chapter 10).
_OVERSHOOT = 0.583


def alarm_height(memory_s: float, calm_between_s: float) -> float:
    """Return the log likelihood ratio that the mean of calm noise passes once in `calm_between_s`.

    A mean with exponential memory passes z = sqrt(2 h) deviations at the rate z / sqrt(2 pi) x exp(-h) / memory
    (Leadbetter, Lindgren and Rootzen, Extremes, 1983, chapter 12). Looked at every `SAMPLE_S` only, it does so
    exp(-0.583 z sqrt(2 sample / memory)) times as often (Siegmund, Sequential Analysis, 1985, chapter 10).
    """
    height = 1.0
    for _ in range(20):
        missed = _OVERSHOOT * sqrt(2.0 * height) * sqrt(2.0 * SAMPLE_S / memory_s)
        height = max(1.0, log(calm_between_s / memory_s * sqrt(height / pi)) - missed)
    return height


class Drift:
    """Watches one flow, in any unit, fed every `SAMPLE_S` or so; `calm_between_s` is the time per false alarm.

    `calm` is the usual rate per second, `excess` and `threshold` are amounts: what has come above it of late, and what
    calm does not explain; `recent` is the mean rate of late. `since` is when the flow was last at its calm. `is_uneven` says that its grains differ in
    size as lengths do. Nothing is judged in the first `learning_s`.
    """

    __slots__ = (
        "_calm_s",
        "_dispersion",
        "_height",
        "_judged_from",
        "_smooth",
        "_smoother",
        "calm",
        "excess",
        "recent",
        "since",
        "threshold",
    )

    def __init__(self, now: float, calm_between_s: float, *, learning_s: float, is_uneven: bool) -> None:
        self._judged_from = now + learning_s
        self._height = alarm_height(_MEMORY_S, calm_between_s)
        self._smooth = self._smoother = self._calm_s = 0.0
        self._dispersion = Dispersion(is_uneven=is_uneven)
        self.calm = self.excess = self.recent = 0.0
        self.threshold = inf
        self.since = now

    def add(self, now: float, amount: float, passed_s: float, grain: float, most_calm: float) -> None:
        """Take what has come in the `passed_s` seconds before `now`, and compare the last seconds with the calm.

        `grain` is the usual amount that comes at once; a rate of more than `most_calm` is no calm.
        """
        self._follow(amount / passed_s, passed_s)
        calm = min(self.calm, most_calm)
        if self.recent <= calm:
            self.since = now
        if now >= self._judged_from and self._calm_s > 0.0:
            self._judge(calm, grain)

    def learn(self, amount: float, passed_s: float) -> None:
        """Take the same as a part of the calm."""
        self._calm_s = min(_CALM_MEMORY_S, self._calm_s + passed_s)
        self.calm += min(1.0, passed_s / self._calm_s) * (amount / passed_s - self.calm)
        self._dispersion.add(amount, passed_s)

    def settle(self) -> None:
        """Take what has come of late for the calm from now on."""
        self.calm, self._calm_s = self.recent, 2.0 * _MEMORY_S

    @property
    def level(self) -> float:
        """The rate now, by Brown's double smoothing (1963): no lag behind a ramp, up to 14 % too much of a step."""
        return 2.0 * self._smooth - self._smoother

    @property
    def mean(self) -> float:
        """The mean rate of the last seconds."""
        return self._smooth

    @property
    def deviation(self) -> float:
        """The standard deviation of one second's amount."""
        return sqrt(self._dispersion.variance)

    @property
    def is_over(self) -> bool:
        """Return whether the excess is more than calm explains."""
        return self.excess >= self.threshold

    def _follow(self, rate: float, passed_s: float) -> None:
        if self._calm_s == 0.0:
            self.recent = self._smooth = self._smoother = rate
        self.recent += _share(passed_s, _MEMORY_S) * (rate - self.recent)
        share = _share(passed_s, _LEVEL_S)
        self._smooth += share * (rate - self._smooth)
        self._smoother += share * (self._smooth - self._smoother)

    def _judge(self, calm: float, grain: float) -> None:
        """Compare the mean of late with a calm rate.

        The mean has the noise of twice its memory, and the calm has its own. The amount at height h lies sqrt(2 h x
        variance) + h x skew / 3 above the expected, as a Poisson tail does (Bernstein's inequality), where skew is
        `largest` times what exponential weights make of it; the variance is known from `freedom` samples only, so
        Student's law takes the place of the Gaussian (Abramowitz and Stegun 26.7.5, first term).
        """
        height, length_s = self._height, 2.0 * _MEMORY_S
        noise = self._dispersion.noise(self.calm, grain)
        variance = noise.dispersion * calm * length_s * (1.0 + length_s / self._calm_s)
        doubt = 1.0 + (2.0 * height + 1.0) / (4.0 * noise.freedom)
        self.excess = max(0.0, (self.recent - calm) * length_s)
        self.threshold = sqrt(2.0 * height * variance) * doubt + height * _SKEWER * noise.largest / 3.0


def _share(passed_s: float, memory_s: float) -> float:
    """Return the weight of a sample that lasted so long in a mean with this memory."""
    return 1.0 - exp(-passed_s / memory_s)

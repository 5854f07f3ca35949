"""Do longer prompts have longer answers? A power law, learned from the answers of all tenants of a lane.

    answer = mean answer x (prompt / usual prompt) ^ slope

One slope for all is known from a few dozen answers, and says something of prompts of which none has been served yet; a
class of prompts that is believed to be long is hardly served. It is the slope within tenants (analysis of covariance: Fisher,
*Statistical Methods for Research Workers*, 1932), each having a mean of its own: that tenants differ is no trend.

Chance alone gives every cloud of points a slope. What it explains is taken off, and a slope that it explains is none
(the non-negative garrote: Breiman, *Better subset regression using the nonnegative garrote*, Technometrics 1995).
"""

from math import sqrt
from typing import Final

from millgate.core.measure.ewma import Ewma
from millgate.core.sizing import FEW_ANSWERS, MEMORY_ANSWERS

# Of a normal law one in twenty lies more deviations off: so many standard errors of a slope are chance, and the line is
# followed up to so many deviations from the usual prompt, for beyond hardly anything was seen.
_DEVIATIONS: Final = 2.0
# An old answer's part in a slope weighs 1/e after so many. By 200, as for means, goodput is 1.4 points less where answers go with
# prompts by -0.5 (`unknown_lengths.py`, 12 runs): chance explains more of a short cloud.
_SLOPE_ANSWERS: Final = 1000.0


class Centre:
    """Where the prompts of one key lie: mean and variance of their logarithms, and how far from it the line is followed.

    Of a tenant the mean logarithm of its answers as well.
    """

    __slots__ = ("_prompt", "_said", "farthest", "usual", "variance")

    def __init__(self) -> None:
        self._prompt = Ewma(0.0, memory=MEMORY_ANSWERS, prior_samples=0.0)
        self._said = Ewma(0.0, memory=MEMORY_ANSWERS, prior_samples=0.0)
        self.usual = self.variance = self.farthest = 0.0

    def add(self, prompt: float, said: float, trend: "PromptTrend | None" = None) -> None:
        """Count one answer; a tenant's teaches `trend` how it lies to those before. Both are logarithms."""
        if trend is not None:
            before = self._prompt.samples
            if before:
                trend.learn(prompt - self.usual, said - self._said.mean, before / (before + 1.0))
            self._said.add(said)
        self._prompt.add(prompt)
        self.usual, self.variance = self._prompt.mean, self._prompt.variance
        self.farthest = _DEVIATIONS * sqrt(self.variance)


class PromptTrend:
    """The slope of answers over prompts, both as logarithms; 0 until more than chance is known."""

    __slots__ = ("_answers", "_xx", "_xy", "_yy", "slope")

    def __init__(self) -> None:
        self.slope = 0.0
        self._answers = self._xx = self._xy = self._yy = 0.0

    def learn(self, prompt: float, said: float, weight: float) -> None:
        """Learn from one answer by its distances from the means of its tenant; both are logarithms."""
        keep = 1.0 - 1.0 / _SLOPE_ANSWERS
        self._answers = self._answers * keep + weight
        self._xx = self._xx * keep + weight * prompt * prompt
        self._xy = self._xy * keep + weight * prompt * said
        self._yy = self._yy * keep + weight * said * said
        self.slope = self._beyond_chance()

    def lean(self, prompt: float, centre: Centre) -> float:
        """Return how far a usual answer to such a prompt lies above the mean answer of this key; all are logarithms.

        The mean of answers along a line is more than the answer in its middle: that of a lognormal law.
        """
        slope = self.slope
        if slope == 0.0:
            return 0.0
        off = min(max(-centre.farthest, prompt - centre.usual), centre.farthest)
        return slope * (off - 0.5 * slope * centre.variance)

    def _beyond_chance(self) -> float:
        xx, xy = self._xx, self._xy
        if self._answers < FEW_ANSWERS or xy == 0.0:
            return 0.0
        unexplained = max(0.0, self._yy - xy * xy / xx) / self._answers
        return xy / xx * max(0.0, 1.0 - _DEVIATIONS * _DEVIATIONS * unexplained * xx / (xy * xy))

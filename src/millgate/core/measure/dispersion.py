"""The noise of a calm flow: the variance of a Poisson process of grains, learned from the flow itself.

Variance = dispersion x mean, over any time that is long against the gaps: with grains of one request for requests that
come one by one, with larger grains for bursts (for gamma gaps of any variation the first three cumulants agree; Cox,
Renewal Theory, 1962, chapter 4) and for work in pieces of unequal size.
"""

from math import sqrt
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
    """Learns the noise of one flow; `is_uneven` says that its grains differ in size as lengths do."""

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

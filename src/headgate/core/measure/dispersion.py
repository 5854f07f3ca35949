"""How noisy a calm flow is: the variance of a Poisson process of grains, learned from the flow itself.

Variance = dispersion x mean, over any time that is long against the gaps: with grains of one request for requests that
come one by one, with larger grains for requests that come in bursts (for gamma gaps of any variation the first three
cumulants agree; Cox, Renewal Theory, 1962, chapter 4) and for work in pieces of unequal size.
"""

from typing import NamedTuple

from headgate.core.measure.ewma import Ewma

# The noise of the last five minutes, of pieces of this length: long against the gaps, short against the load's moves.
_MEMORY_S = 300.0
_PIECE_S = 2.0
# Before it is known, grains come one by one; this belief counts as so many pieces.
_PRIOR_PIECES = 10.0
# Dispersion of pieces that are as unequal as exponential lengths, in their mean: E[X^2] / E[X]^2.
_UNEVEN = 2.0
# Neighbours' differences tell as much of a variance as two thirds as many independent samples (von Neumann, 1941).
_FREEDOM_SHARE = 2.0 / 3.0


class Noise(NamedTuple):
    """What a calm flow's noise is like.

    `dispersion` is the variance per mean and `largest` the third cumulant per variance, both in the flow's unit;
    `freedom` is how many independent samples the estimate is worth.
    """

    dispersion: float
    largest: float
    freedom: float


class Dispersion:
    """Learns the noise of one flow; `is_uneven` says that its grains differ in size as lengths do."""

    __slots__ = ("_amount", "_is_uneven", "_passed_s", "_rate", "_variance")

    def __init__(self, *, is_uneven: bool) -> None:
        self._is_uneven = is_uneven
        self._variance = Ewma(0.0, memory=_MEMORY_S / _PIECE_S, prior_samples=0.0)
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

        Lengths are lognormal as a rule: E[X^3] / E[X^2] is then (E[X^2] / E[X])^2 / E[X].
        """
        pieces = self._variance.samples
        prior = grain * _UNEVEN if self._is_uneven else grain
        learned = self._variance.mean / mean if mean > 0.0 else prior
        dispersion = (pieces * learned + _PRIOR_PIECES * prior) / (pieces + _PRIOR_PIECES)
        largest = dispersion * dispersion / grain if self._is_uneven and grain > 0.0 else dispersion
        return Noise(dispersion, largest, _FREEDOM_SHARE * pieces + _PRIOR_PIECES)

    def _end_piece(self, rate: float) -> None:
        """Half the mean squared difference of neighbours is the variance; a slow trend adds nothing to it."""
        if self._rate >= 0.0:
            self._variance.add(0.5 * (rate - self._rate) ** 2 * self._passed_s)
        self._rate = rate
        self._amount = self._passed_s = 0.0

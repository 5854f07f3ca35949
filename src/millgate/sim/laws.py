"""Laws of chance: gaps between arrivals, lengths, service times, tempers. Each is a mean and a way to draw.

Lengths of prompts and answers are drawn from published quantiles. Between two known quantiles the logarithm of
the length is taken as linear in probability, which keeps every published number exactly and invents no tail
beyond the published maximum.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, log1p, sqrt

import numpy as np
from numpy.typing import NDArray

from millgate.sim.randomness import Sample

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Law:
    """A law with its mean and its squared coefficient of variation (variance over squared mean)."""

    name: str
    mean: float
    cv2: float
    sample: Sample


def constant(value: float) -> Law:
    """Always this number."""
    return Law("constant", value, 0.0, lambda _dice, count: np.full(count, value))


def exponential(mean: float) -> Law:
    """The memoryless law."""
    return Law("exponential", mean, 1.0, lambda dice, count: dice.exponential(mean, count))


def gamma(mean: float, cv2: float) -> Law:
    """Gamma: squared variation below 1 is steadier than memoryless, above 1 burstier."""
    return Law("gamma", mean, cv2, lambda dice, count: dice.gamma(1.0 / cv2, mean * cv2, count))


def lognormal(mean: float, cv2: float) -> Law:
    """Lognormal: many short, few very long; what service times of real systems look like."""
    variance = log1p(cv2)
    middle = log(mean) - variance / 2
    return Law("lognormal", mean, cv2, lambda dice, count: dice.lognormal(middle, sqrt(variance), count))


def quantiles(points: Sequence[tuple[float, float]]) -> Law:
    """The law through published quantiles: (probability, value) in ascending order, from 0 to 1.

    The logarithm of the value is linear in between, so a piece from `a` to `b` has the mean (b - a) / ln(b / a).
    """
    shares = np.array([share for share, _ in points])
    logs = np.log([value for _, value in points])
    if shares[0] != 0.0 or shares[-1] != 1.0 or np.any(np.diff(shares) <= 0) or np.any(np.diff(logs) < 0):
        raise ValueError("points: must ascend from probability 0 to probability 1")

    def sample(dice: np.random.Generator, count: int) -> Numbers:
        return np.asarray(np.exp(np.interp(dice.random(count), shares, logs)))

    mean, square = _moment(shares, logs, 1.0), _moment(shares, logs, 2.0)
    return Law("quantiles", mean, square / mean**2 - 1.0, sample)


def _moment(shares: Numbers, logs: Numbers, power: float) -> float:
    """Integrate value**power over the pieces of a quantile law."""
    total = 0.0
    for width, low, high in zip(np.diff(shares), logs[:-1] * power, logs[1:] * power, strict=True):
        total += width * (exp(low) if high == low else (exp(high) - exp(low)) / (high - low))
    return float(total)

"""Laws of chance that only studies need, beside those of the simulator."""

from math import sqrt

import numpy as np

from millgate.sim.laws import Law, Numbers


def uniform(low: float, high: float) -> Law:
    """Anything between two bounds alike."""
    mean = (low + high) / 2
    return Law(
        "uniform",
        mean,
        (high - low) ** 2 / 12 / mean**2 if mean else 0.0,
        lambda dice, count: dice.uniform(low, high, count),
    )


def hyperexponential(mean: float, cv2: float) -> Law:
    """Two exponentials with balanced means: the plainest law with a squared variation above 1."""
    share = (1.0 + sqrt((cv2 - 1.0) / (cv2 + 1.0))) / 2.0
    means = (mean / (2.0 * share), mean / (2.0 * (1.0 - share)))

    def sample(dice: np.random.Generator, count: int) -> Numbers:
        return np.where(dice.random(count) < share, means[0], means[1]) * dice.exponential(1.0, count)

    return Law("hyperexponential", mean, cv2, sample)


def erlang(mean: float, stages: int) -> Law:
    """The sum of that many equal exponentials: squared variation 1 / stages."""
    return Law(
        "erlang", mean, 1.0 / stages, lambda dice, count: dice.gamma(float(stages), mean / stages, count)
    )


def clipped(law: Law, most: float) -> Law:
    """The same law with everything above `most` cut to it; mean and variation by numeric integration."""
    values = np.minimum(law.sample(np.random.default_rng(0), 200_000), most)
    mean = float(values.mean())

    def sample(dice: np.random.Generator, count: int) -> Numbers:
        return np.minimum(law.sample(dice, count), most)

    return Law(f"{law.name} to {most:g}", mean, float(values.var()) / mean**2, sample)

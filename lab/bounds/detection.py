"""How early a climbing load can be called at best, by a detector that knows everything but when the climb begins.

Requests that come one by one tell of their rate by their number only. The detector knows the calm rate and the climb, and
adds up the likelihood ratios of all beginnings so far (Shiryaev, 1963; Roberts, 1966). Of all detectors with as many false
alarms it is the soonest, in the mean over beginnings (Pollak and Tartakovsky, Theory of Probability and Its Applications 53,
2009). So nothing that watches arrivals alone calls sooner, whatever it knows.
"""

from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from millgate.instruments.early_warning import SAMPLE_S
from millgate.sim.randomness import Streams

FALSE_ALARMS_PER_H: Final = 0.8
"""How often the best detector may call a calm load."""

# The threshold is learned from so many calms, watched for so many looks or until they have been called at this sum, in
# seconds: a tenth of what is allowed between false alarms. What the overshoot is then uncertain by moves no delay by more
# than a twentieth of a second.
_CALMS, _LEARNING_SUM_S, _LEARNING_LOOKS = 400, 450.0, 4_000


class Climb(NamedTuple):
    """A load that climbs evenly from `calm` to `top`, in shares of capacity, within `ramp_s`, and stays there."""

    calm: float
    top: float
    ramp_s: float
    capacity_per_s: float

    @property
    def full_s(self) -> float:
        """The time from its beginning to load 1.0."""
        return self.ramp_s * (1.0 - self.calm) / (self.top - self.calm)

    def loads(self, ages_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the loads at these ages; before its beginning the climb is calm."""
        return self.calm + (self.top - self.calm) * np.clip(ages_s / self.ramp_s, 0.0, 1.0)


class Beginnings:
    """The likelihood ratios of all beginnings of a climb, over those of the calm, for several flows at once.

    Looked at every `SAMPLE_S`. Their sum, each beginning weighted with the time that it stands for, is the statistic of
    Shiryaev and Roberts; in calm its mean is the time since its own beginning.
    """

    def __init__(self, climb: Climb, flows: int) -> None:
        looks = int(climb.ramp_s / SAMPLE_S) + 1
        loads = climb.loads((np.arange(looks, dtype=np.float64) + 0.5) * SAMPLE_S)[:, None]
        self._log_ratios = np.log(loads / climb.calm)
        self._expected = (loads - climb.calm) * climb.capacity_per_s * SAMPLE_S
        self._ratios = np.zeros((looks, flows))

    def look(self, arrived: NDArray[np.int64]) -> NDArray[np.float64]:
        """Take how many have come in each flow since the last look; return the sums, in seconds."""
        ratios = self._ratios
        # Beginnings that lie longer ago than the climb takes are one: the load is at its top in all of them.
        oldest = ratios[-1] + ratios[-2]
        ratios[1:] = ratios[:-1]
        ratios[-1], ratios[0] = oldest, SAMPLE_S
        # Few numbers of arrivals occur between two looks, and an exponential is dear.
        counts, where = np.unique(arrived, return_inverse=True)
        ratios *= np.exp(self._log_ratios * counts - self._expected)[:, where]
        sums: NDArray[np.float64] = ratios.sum(axis=0)
        return sums

    def forget(self, flows: NDArray[np.bool_]) -> None:
        """Begin anew with these flows."""
        self._ratios[:, flows] = 0.0


def least_ratio_s(climb: Climb, false_alarms_per_h: float = FALSE_ALARMS_PER_H) -> float:
    """Return the sum of ratios, in seconds, that a calm load passes so often.

    The sum less the time passed is a martingale in calm, so that the mean time to a call is the mean sum when called: the
    threshold, and an overshoot in proportion to it (Pollak, Annals of Statistics 15, 1987). The overshoot is simulated.
    """
    return 3600.0 / false_alarms_per_h / _overshoot(climb)


@cache
def _overshoot(climb: Climb) -> float:
    """Return the mean sum when a calm load is called, over the threshold."""
    beginnings, dice = Beginnings(climb, _CALMS), Streams(0).generator("calms")
    reached = np.zeros(_CALMS)
    for _ in range(_LEARNING_LOOKS):
        sums = beginnings.look(dice.poisson(climb.calm * climb.capacity_per_s * SAMPLE_S, _CALMS))
        called = (sums >= _LEARNING_SUM_S) & (reached == 0.0)
        reached[called] = sums[called]
        if reached.all():
            break
    return float(reached[reached > 0.0].mean()) / _LEARNING_SUM_S


def best_delays_s(climb: Climb, arrived: NDArray[np.int64], begins_s: float) -> NDArray[np.float64]:
    """Return the seconds from load 1.0 to the best detector's call, for each of several flows; at the end where none came.

    `arrived[look, flow]` have come between looks, and the climb begins at `begins_s`; calls before that are false.
    """
    threshold_s, beginnings = least_ratio_s(climb), Beginnings(climb, arrived.shape[1])
    called_at = np.full(arrived.shape[1], len(arrived) * SAMPLE_S)
    is_open = np.ones(arrived.shape[1], dtype=np.bool_)
    for look, came in enumerate(arrived, start=1):
        called = beginnings.look(came) >= threshold_s
        beginnings.forget(called)
        if look * SAMPLE_S >= begins_s:
            called_at[called & is_open] = look * SAMPLE_S
            is_open &= ~called
    return called_at - begins_s - climb.full_s


def counted(times_s: Sequence[float], until_s: float) -> NDArray[np.int64]:
    """Return how many of these arrivals came before each look until then, as one flow."""
    looks = int(until_s / SAMPLE_S)
    counts, _ = np.histogram(times_s, bins=looks, range=(0.0, looks * SAMPLE_S))
    return counts[:, None].astype(np.int64)

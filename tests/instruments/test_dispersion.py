"""The noise of a calm flow."""

from random import Random
from statistics import fmean

import pytest

from millgate.instruments.early_warning import Dispersion

SECONDS = 600


def _learned(amounts: list[float], *, is_uneven: bool = False) -> Dispersion:
    dispersion = Dispersion(is_uneven=is_uneven)
    for amount in amounts:
        dispersion.add(amount, 1.0)
    return dispersion


def _counts(gap_variation: float, per_s: float, seed: int = 3) -> list[float]:
    """Return the arrivals of each second, for gamma gaps of this coefficient of variation."""
    dice = Random(seed)
    shape = 1.0 / gap_variation**2
    counts, now = [0.0] * SECONDS, 0.0
    while (now := now + dice.gammavariate(shape, 1.0 / (shape * per_s))) < SECONDS:
        counts[int(now)] += 1.0
    return counts


@pytest.mark.parametrize("gap_variation", [1.0, 2.0])
def test_requests_in_bursts_are_grains_of_the_squared_variation_of_their_gaps(gap_variation: float) -> None:
    noise = _learned(_counts(gap_variation, 20.0)).noise(20.0, 1.0)
    assert noise.dispersion == pytest.approx(gap_variation**2, rel=0.25)
    assert noise.largest == noise.dispersion


@pytest.mark.parametrize("per_s", [2.0, 6.0])
def test_bursts_that_pieces_cut_in_two_are_known_whole(per_s: float) -> None:
    """In pieces with one burst or three, half the squared difference of neighbours alone tells of 3.2 and of 3.7."""
    noises = [_learned(_counts(2.0, per_s, seed)).noise(per_s, 1.0) for seed in range(40)]
    assert fmean(noise.dispersion for noise in noises) == pytest.approx(4.0, rel=0.08)


def test_before_anything_is_known_requests_come_one_by_one() -> None:
    assert Dispersion(is_uneven=False).noise(10.0, 0.05) == (0.05, 0.05, 3.0)


def test_uneven_grains_have_a_longer_tail() -> None:
    even, uneven = (_learned(_counts(2.0, 20.0), is_uneven=each).noise(20.0, 1.0) for each in (False, True))
    assert even.largest == even.dispersion
    assert uneven.largest == uneven.dispersion**2 > 3.0 * uneven.dispersion


def test_a_slow_rise_is_no_noise() -> None:
    dice = Random(1)
    rising = [dice.gauss(0.2 + 0.001 * second, 0.05) for second in range(SECONDS)]
    assert _learned(rising).variance == pytest.approx(0.05**2, rel=0.25)


def test_the_belief_fades_as_pieces_come_in() -> None:
    early, late = (_learned([1.0] * seconds).noise(1.0, 1.0) for seconds in (20, 300))
    assert 1.0 > early.dispersion > late.dispersion > 0.0
    assert early.freedom < late.freedom < SECONDS


def test_a_flow_of_nothing_has_the_noise_that_is_believed() -> None:
    assert _learned([0.0] * 60).noise(0.0, 0.1).dispersion == pytest.approx(0.1)

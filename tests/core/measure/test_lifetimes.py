"""How long do they last, when most have only begun?"""

from random import Random
from statistics import fmean

import pytest

from core.measure.crowds import crowd
from millgate.core.measure.ewma import lifetimes


def test_where_nothing_runs_they_are_the_lives_that_have_ended() -> None:
    assert lifetimes([1.0, 2.0, 3.0, 4.0], [], 4) == [1.0, 2.0, 3.0, 4.0]
    assert lifetimes([1.0, 2.0], [], 6) == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]


def test_equal_lives_stay_as_they_are_whatever_has_begun() -> None:
    assert lifetimes([1.0] * 8, [0.1, 0.4, 0.9], 4) == [1.0] * 4


def test_who_runs_on_counts_for_those_who_last_longer() -> None:
    """Of four the second has ended at 2, when one of the others was only at 1: Kaplan and Meier's steps are 1/4 and 3/8."""
    lives = lifetimes([0.5, 2.0], [1.0, 3.0], 8)

    assert lives[:2] == [0.5, 0.5]
    assert lives[2:5] == [2.0, 2.0, 2.0]
    assert all(later > 2.0 for later in lives[5:])
    assert lives == sorted(lives)


@pytest.mark.parametrize("turns", [1.5, 3.0, 6.0])
@pytest.mark.parametrize("cv", [0.5, 1.0])
def test_the_mean_of_a_first_crowd_is_right_where_that_of_the_ended_is_far_too_short(
    cv: float, turns: float
) -> None:
    dice = Random(1)
    crowds = [crowd(16, turns, dice, cv) for _ in range(200)]
    of_all = fmean(fmean(lifetimes(ended, running, 64)) for ended, running in crowds)
    of_ended = fmean(fmean(ended) for ended, _ in crowds)

    assert of_ended < 1.0 - 0.09 * cv
    assert abs(of_all - 1.0) < min(0.2, 1.0 - of_ended)


@pytest.mark.parametrize(("turns", "of_truth"), [(1.0, 0.48), (5.0, 0.84)])
def test_the_ended_of_eight_uneven_streams_say_so_much_of_the_truth(turns: float, of_truth: float) -> None:
    """The figures of docs/policies/sizing.md."""
    dice = Random(2)
    means = [fmean(ended) for ended, _ in (crowd(8, turns, dice) for _ in range(400)) if ended]

    assert fmean(means) == pytest.approx(of_truth, abs=0.02)

"""A noisy load on its way past 1."""

from random import Random

import pytest

from headgate.core.measure.drift import Drift

CALM_BETWEEN_S = 3_600.0


def _fed(seed: int, noise: float, *levels: float) -> Drift:
    dice = Random(seed)
    drift = Drift(0.0, CALM_BETWEEN_S)
    for second, level in enumerate(levels, start=1):
        drift.add(float(second), dice.gauss(level, noise), 1.0)
    return drift


def test_it_learns_its_own_calm_and_noise() -> None:
    drift = _fed(1, 0.1, *[0.7] * 600)
    assert drift.calm == pytest.approx(0.7, abs=0.02)
    assert drift.deviation == pytest.approx(0.1, rel=0.15)
    assert drift.calm < drift.reference < 1.0
    assert not drift.is_over(600.0)


def test_a_slow_rise_is_not_taken_for_noise() -> None:
    drift = _fed(1, 0.05, *[0.2 + 0.001 * second for second in range(400)])
    assert drift.deviation == pytest.approx(0.05, rel=0.2)


@pytest.mark.parametrize("noise", [0.05, 0.1, 0.2])
def test_the_noisier_the_load_the_longer_it_takes_to_be_sure(noise: float) -> None:
    calm = [0.75] * 300
    sure_after = next(
        seconds
        for seconds in range(1, 200)
        if _fed(3, noise, *calm, *[1.1] * seconds).is_over(300.0 + seconds)
    )
    assert noise * 10 < sure_after < noise * 150


def test_a_rise_that_stays_far_below_capacity_is_none_of_its_business() -> None:
    drift = _fed(1, 0.1, *[0.2] * 300, *[0.6] * 300)
    assert not drift.is_over(600.0)


def test_nothing_is_over_before_the_noise_is_known() -> None:
    assert not _fed(1, 0.05, *[2.0] * 20).is_over(20.0)
    assert _fed(1, 0.05, *[2.0] * 40).is_over(40.0)


def test_one_huge_second_is_no_trend() -> None:
    drift = _fed(1, 0.1, *[0.7] * 300)
    drift.add(301.0, 50.0, 1.0)
    assert not drift.is_over(301.0)


def test_what_overloads_for_long_does_not_become_the_calm() -> None:
    drift = _fed(1, 0.1, *[0.75] * 300, *[1.4] * 2_000)
    assert drift.is_over(2_300.0)
    assert drift.calm < 0.85
    assert drift.since < 310.0

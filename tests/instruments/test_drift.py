"""A noisy load on its way past 1."""

from math import inf, sqrt
from random import Random

import pytest

from millgate.instruments.early_warning import SAMPLE_S, Drift, alarm_height

CALM_BETWEEN_S = 3_600.0
GRAIN = 0.01


def _feed(
    drift: Drift, dice: Random, start_s: int, noise: float, *levels: float, most_calm: float = inf
) -> None:
    for second, level in enumerate(levels, start=start_s + 1):
        amount = max(0.0, dice.gauss(level, noise))
        drift.add(float(second), amount, 1.0, GRAIN, most_calm)
        if not drift.is_over:
            drift.learn(amount, 1.0, most_calm)


def _fed(seed: int, noise: float, *levels: float, most_calm: float = inf) -> Drift:
    drift = Drift(0.0, CALM_BETWEEN_S, learning_s=30.0, is_uneven=False)
    _feed(drift, Random(seed), 0, noise, *levels, most_calm=most_calm)
    return drift


def test_it_learns_its_own_calm_and_noise() -> None:
    drift = _fed(1, 0.1, *[0.7] * 600)
    assert drift.calm == pytest.approx(0.7, abs=0.02)
    assert drift.deviation == pytest.approx(0.1, rel=0.15)
    assert drift.recent == pytest.approx(0.7, abs=0.1)
    assert not drift.is_over


@pytest.mark.parametrize(("noise", "least_s", "most_s"), [(0.05, 1, 3), (0.1, 2, 5), (0.2, 3, 15)])
def test_the_noisier_the_load_the_longer_it_takes_to_be_sure(noise: float, least_s: int, most_s: int) -> None:
    drift, dice = Drift(0.0, CALM_BETWEEN_S, learning_s=30.0, is_uneven=False), Random(3)
    _feed(drift, dice, 0, noise, *[0.75] * 300)
    sure_after = 0
    while not drift.is_over and sure_after < 100:
        _feed(drift, dice, 300 + sure_after, noise, 1.1)
        sure_after += 1
    assert least_s <= sure_after <= most_s


def test_the_level_lags_behind_no_ramp() -> None:
    drift = _fed(1, 0.0, *[0.5] * 300, *[0.5 + 0.02 * second for second in range(30)])
    assert drift.level == pytest.approx(0.5 + 0.02 * 29, abs=0.02)
    assert drift.recent < drift.level - 0.03


def test_the_level_overshoots_a_step_by_less_than_a_seventh() -> None:
    drift = _fed(1, 0.0, *[0.5] * 300)
    highest = 0.0
    for second in range(301, 330):
        drift.add(float(second), 0.8, 1.0, GRAIN, inf)
        highest = max(highest, drift.level)
    assert 0.5 + 0.3 * 1.05 < highest <= 0.5 + 0.3 * 1.14
    assert drift.level == pytest.approx(0.8, abs=0.01)


def test_it_knows_since_when_it_has_been_above_its_calm() -> None:
    drift = _fed(1, 0.02, *[0.5] * 300, *[1.0] * 10)
    assert drift.since == pytest.approx(300.0, abs=2.0)


def test_nothing_is_over_before_the_noise_is_known() -> None:
    assert not _fed(1, 0.05, *[0.5] * 15, *[2.0] * 10).is_over
    assert _fed(1, 0.05, *[0.5] * 30, *[2.0] * 10).is_over


def test_a_young_calm_takes_more_to_be_sure_of() -> None:
    young, old = (_fed(1, 0.1, *[0.7] * seconds) for seconds in (60, 600))
    assert young.threshold > 1.1 * old.threshold


def test_what_is_more_than_any_calm_is_over_though_it_has_never_been_less() -> None:
    assert not _fed(1, 0.05, *[1.3] * 600).is_over
    assert _fed(1, 0.05, *[1.3] * 600, most_calm=0.9).is_over


def test_what_it_has_come_down_to_is_calm_once_it_has_settled() -> None:
    drift, dice = _fed(1, 0.05, *[0.5] * 300, *[1.3] * 60), Random(2)
    assert drift.calm == pytest.approx(0.5, abs=0.05)
    _feed(drift, dice, 360, 0.05, *[0.8] * 60)
    before_settling = drift.is_over
    drift.settle()
    _feed(drift, dice, 420, 0.05, *[0.8] * 60)
    assert (before_settling, drift.is_over) == (True, False)
    assert drift.calm == pytest.approx(0.8, abs=0.05)


def test_the_height_grows_with_the_calm_that_is_asked_for_and_falls_with_the_memory() -> None:
    assert alarm_height(2.5, 36_000.0) > alarm_height(2.5, 3_600.0) > alarm_height(8.0, 3_600.0) > 1.0
    assert alarm_height(8.0, 1.0) == 1.0


def test_calm_noise_is_over_about_as_often_as_is_said() -> None:
    calm_between_s, alarms, dice = 300.0, 0, Random(7)
    drift = Drift(0.0, calm_between_s, learning_s=30.0, is_uneven=False)
    was_over, samples = False, 40_000
    for sample in range(samples):
        amount = dice.gauss(0.7 * SAMPLE_S, 0.1 * sqrt(SAMPLE_S))
        drift.add(sample * SAMPLE_S, amount, SAMPLE_S, GRAIN, inf)
        drift.learn(amount, SAMPLE_S, inf)
        alarms += drift.is_over and not was_over
        was_over = drift.is_over
    assert 0.25 < alarms * calm_between_s / (samples * SAMPLE_S) < 1.25

"""A mean that forgets."""

from statistics import fmean, pstdev

import pytest

from millgate.core.measure import Ewma


def test_before_any_sample_it_is_the_prior() -> None:
    mean = Ewma(3.0)
    assert (mean.mean, mean.deviation, mean.samples) == (3.0, 0.0, 0.0)


def test_early_samples_are_averaged_plainly_with_the_prior_as_two_of_them() -> None:
    mean = Ewma(1.0)
    for value in (4.0, 7.0, 2.0):
        mean.add(value)
    assert mean.mean == pytest.approx(fmean([1.0, 1.0, 4.0, 7.0, 2.0]))
    assert mean.samples == 3.0


def test_without_a_prior_mean_and_deviation_are_those_of_the_samples() -> None:
    values = [3.0, 9.0, 4.0, 4.5]
    mean = Ewma(99.0, prior_samples=0.0)
    for value in values:
        mean.add(value)
    assert mean.mean == pytest.approx(fmean(values))
    assert mean.deviation == pytest.approx(pstdev(values))


def test_it_follows_a_change_with_its_memory_as_time_constant() -> None:
    mean = Ewma(0.0, memory=20.0)
    for _ in range(200):
        mean.add(1.0)
    for _ in range(20):
        mean.add(2.0)
    assert mean.mean == pytest.approx(2.0 - (1.0 - 1.0 / 20.0) ** 20, rel=1e-3)
    assert mean.samples == 18.0

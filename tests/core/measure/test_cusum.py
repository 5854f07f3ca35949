"""A sum that sees small lasting shifts."""

from random import Random

import pytest

from headgate.core.measure.cusum import Cusum, alarm_threshold


def test_it_stays_at_nothing_while_samples_stay_below_the_reference() -> None:
    total = Cusum(0.0)
    for second in range(1, 20):
        total.add(float(second), -0.1, most=10.0)
    assert (total.total, total.since) == (0.0, 19.0)


def test_it_collects_what_exceeds_and_remembers_since_when() -> None:
    total = Cusum(0.0)
    for second, excess in enumerate([-1.0, 0.2, 0.3, -0.1, 0.4], start=1):
        total.add(float(second), excess, most=10.0)
    assert total.total == pytest.approx(0.8)
    assert total.since == 1.0


def test_it_is_held_at_its_bound_so_that_it_comes_down_when_the_cause_is_over() -> None:
    total = Cusum(0.0)
    for second in range(100):
        total.add(float(second), 1.0, most=2.0)
    assert total.total == 2.0
    total.add(100.0, -2.5, most=2.0)
    assert total.total == 0.0


def test_the_threshold_grows_with_the_noise_and_with_the_calm_that_is_asked_for() -> None:
    usual = alarm_threshold(0.04, 0.1, 3_600.0)
    assert alarm_threshold(0.08, 0.1, 3_600.0) > 1.8 * usual
    assert usual < alarm_threshold(0.04, 0.1, 36_000.0) < 1.5 * usual
    assert alarm_threshold(0.04, 0.001, 2.0) > 0.0


def test_calm_noise_crosses_the_threshold_about_as_rarely_as_it_says() -> None:
    """Wald's approximation neglects the overshoot, so the real time between alarms is somewhat longer."""
    dice = Random(7)
    threshold = alarm_threshold(0.04, 0.1, 500.0)
    crossings, steps = 0, 100_000
    total = Cusum(0.0)
    for step in range(steps):
        total.add(float(step), dice.gauss(-0.1, 0.2), most=1e9)
        if total.total >= threshold:
            crossings += 1
            total = Cusum(float(step))
    assert 500.0 < steps / crossings < 2_000.0

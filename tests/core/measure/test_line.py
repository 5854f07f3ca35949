"""A straight line learned online."""

from random import Random

import pytest

from millgate.core.measure import LearnedLine


def _line(base: float = 1.0, slope: float = 0.1) -> LearnedLine:
    return LearnedLine(base, slope, typical_x=100.0)


def test_before_any_sample_it_is_the_prior() -> None:
    line = _line()
    assert (line.at(0.0), line.at(50.0)) == (1.0, 6.0)


def test_samples_on_the_line_leave_it_where_it_is() -> None:
    line = _line()
    for x in (1.0, 30.0, 200.0, 30.0):
        line.add(x, line.at(x))
    assert line.base == pytest.approx(1.0, rel=1e-3)
    assert line.slope == pytest.approx(0.1, rel=1e-3)


def test_a_different_line_is_found_within_two_hundred_noisy_samples() -> None:
    line, dice = _line(), Random(1)
    for _ in range(200):
        x = dice.uniform(0.0, 200.0)
        line.add(x, (3.0 + 0.2 * x) * dice.uniform(0.9, 1.1))
    assert line.at(0.0) == pytest.approx(3.0, rel=0.25)
    assert line.at(150.0) == pytest.approx(33.0, rel=0.05)


def test_one_point_again_and_again_moves_the_line_there_and_keeps_it_sane_elsewhere() -> None:
    line = _line()
    for _ in range(500):
        line.add(10.0, 4.0)
    assert line.at(10.0) == pytest.approx(4.0, rel=0.05)
    assert 0.0 <= line.at(0.0) <= line.at(10.0) <= line.at(1_000.0) <= 200.0


def test_neither_coefficient_ever_falls_below_zero() -> None:
    falling, steep = _line(), _line()
    for x in range(100):
        falling.add(float(x), 200.0 - x)
        steep.add(float(x), max(0.0, x - 50.0))
    assert (falling.slope, falling.base > 0.0) == (0.0, True)
    assert steep.base >= 0.0
    assert steep.slope > 0.0


def test_one_stalled_answer_counts_as_at_most_eight_times_the_prediction() -> None:
    stalled, eightfold = _line(), _line()
    stalled.add(50.0, 1e9)
    eightfold.add(50.0, 8.0 * 6.0)
    assert stalled.at(50.0) == pytest.approx(eightfold.at(50.0))


def test_a_line_that_lies_at_zero_can_leave_again() -> None:
    line = LearnedLine(0.0, 0.0, typical_x=100.0)
    for _ in range(100):
        line.add(50.0, 2.0)
    assert line.at(50.0) == pytest.approx(2.0, rel=0.25)

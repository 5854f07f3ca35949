"""What TPOT nine users in ten get."""

import pytest

from headgate.core.limits.pace import Pace, slope_s
from headgate.core.settings import ServicePrior

PRIOR = ServicePrior(0.05, 0.0001, 0.01, 0.0001)


def _p90_s(pace: Pace, streams: int) -> float:
    p90_s = pace.p90_s(streams)
    assert p90_s is not None
    return p90_s


def _steady(pace: Pace, seconds: int, streams: int, tpot_s: float, since: int = 0) -> None:
    for second in range(since + 1, since + seconds + 1):
        pace.measured(float(second), streams, tpot_s)
        for _ in range(10):
            pace.answered(second - 0.5, tpot_s)


def test_the_slope_holds_the_prompts_of_others() -> None:
    assert slope_s(PRIOR) == pytest.approx(0.0001 + 4 * 0.0001)


def test_equal_answers_are_their_own_p90() -> None:
    pace = Pace(PRIOR)
    _steady(pace, 60, 20, 0.03)
    assert _p90_s(pace, 20) == pytest.approx(0.03, rel=0.08)


def test_other_numbers_of_streams_are_foreseen_by_the_line() -> None:
    """10 ms + 0.5 ms a stream: 20 streams measured, 60 are twice as slow, and nobody has to wait to see it."""
    pace = Pace(PRIOR)
    _steady(pace, 60, 20, 0.02)
    assert _p90_s(pace, 60) / _p90_s(pace, 20) == pytest.approx(2.0)


def test_what_was_learned_at_far_more_streams_is_nearly_forgotten() -> None:
    """50 streams take twice what the line has; 10 take what it has, and half a minute shows it."""
    pace = Pace(PRIOR)
    _steady(pace, 60, 50, 0.07)
    _steady(pace, 30, 10, 0.015, since=60)
    assert _p90_s(pace, 10) == pytest.approx(0.015, rel=0.15)


def test_an_answer_that_began_before_a_far_move_says_nothing() -> None:
    pace = Pace(PRIOR)
    _steady(pace, 60, 50, 0.035)
    pace.measured(61.0, 10, 0.015)
    before = _p90_s(pace, 10)
    for _ in range(100):
        pace.answered(30.0, 0.07)
    assert _p90_s(pace, 10) == before


def test_few_streams_more_or_less_are_no_move() -> None:
    """A limit that sways by a fifth goes on learning."""
    pace = Pace(PRIOR)
    for second in range(1, 200):
        pace.measured(float(second), 20 + second % 8, 0.03 * (1.0 + 0.2 * (second % 2)))
    swaying = _p90_s(pace, 20)
    pace.measured(200.0, 20, 0.06)
    assert _p90_s(pace, 20) < 1.1 * swaying


def test_an_engine_that_becomes_slower_is_known_within_seconds() -> None:
    pace = Pace(PRIOR)
    _steady(pace, 100, 20, 0.02)
    _steady(pace, 10, 20, 0.03, since=100)
    assert _p90_s(pace, 20) > 0.025


def test_one_window_of_a_standstill_is_not_believed() -> None:
    """Five seconds without a token, then as before."""
    pace = Pace(PRIOR)
    _steady(pace, 100, 20, 0.02)
    before = _p90_s(pace, 20)
    pace.measured(105.0, 20, 5.0)
    assert _p90_s(pace, 20) < 1.2 * before


def test_nothing_is_told_before_the_first_window() -> None:
    pace = Pace(PRIOR)
    pace.answered(0.0, 0.02)
    assert pace.p90_s(10) is None


def test_memory_is_bounded() -> None:
    pace = Pace(PRIOR)
    for second in range(5_000):
        pace.measured(float(second), 20, 0.02)
    assert len(pace._times) <= 256
    assert len(pace._sums) == len(pace._times) + 1

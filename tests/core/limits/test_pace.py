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

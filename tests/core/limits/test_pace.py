"""What TPOT nine users in ten get."""

import pytest

from millgate.core.limits.pace import Pace, slope_s
from millgate.core.settings import ServicePrior

PRIOR = ServicePrior(0.05, 0.0001, 0.01, 0.0001)


def _p90_s(pace: Pace, streams: int) -> float:
    p90_s = pace.quantile_s(streams, 0.9)
    assert p90_s is not None
    return p90_s


def _steady(pace: Pace, seconds: int, streams: int, tpot_s: float, since: int = 0) -> None:
    for second in range(since + 1, since + seconds + 1):
        pace.measured(float(second), streams, tpot_s)
        for _ in range(10):
            pace.answered(second - 0.5, tpot_s)


def test_the_slope_holds_the_prompts_of_others() -> None:
    assert slope_s(PRIOR) == pytest.approx(0.0001 + 5 * 0.0001)


def test_equal_answers_are_their_own_p90() -> None:
    pace = Pace(PRIOR)
    _steady(pace, 60, 20, 0.03)
    assert _p90_s(pace, 20) == pytest.approx(0.03, rel=0.08)


def test_other_numbers_of_streams_are_foreseen_by_the_line() -> None:
    """10 ms + 0.6 ms a stream: 22 ms with 20 streams measured, 46 ms with 60."""
    pace = Pace(PRIOR)
    _steady(pace, 60, 20, 0.02)
    assert _p90_s(pace, 60) / _p90_s(pace, 20) == pytest.approx(46 / 22)


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
        tpot_s = 0.03 * (1.0 + 0.2 * (second % 2))
        pace.measured(float(second), 20 + second % 8, tpot_s)
        pace.answered(second - 0.5, tpot_s)
    swaying = _p90_s(pace, 20)
    pace.measured(200.0, 20, 0.06)
    assert _p90_s(pace, 20) < 1.1 * swaying


def test_a_handful_of_streams_is_not_far_from_two_more_or_two_less() -> None:
    """Three streams or seven: a TPOT 7 % longer by the line. What sixty seconds taught stays."""
    few, steady = Pace(PRIOR), Pace(PRIOR)
    for pace in (few, steady):
        _steady(pace, 60, 5, 0.02)
    _steady(few, 1, 7, 0.021, since=60)
    _steady(few, 1, 3, 0.019, since=61)
    assert _p90_s(few, 5) == pytest.approx(_p90_s(steady, 5), rel=0.02)


def _unanswered(wave: float) -> Pace:
    """Return a minute of windows whose speeds swing by so much around their mean, and no answer yet."""
    pace = Pace(PRIOR)
    for second in range(1, 61):
        pace.measured(float(second), 20, 0.02 / (1.0 + wave * (-1) ** second))
    return pace


def test_a_second_counts_as_a_second_however_little_is_written_in_it() -> None:
    """20 tokens in one second and 60 in the next, for ever: an answer gets 25 ms a token, not the mean of 50 and 17."""
    pace = Pace(PRIOR)
    for second in range(1, 300):
        pace.measured(float(second), 20, 1.0 / (20.0 if second % 2 else 60.0))
        pace.answered(0.0, 0.025)
    assert _p90_s(pace, 20) / pace.tail(0.9) == pytest.approx(0.025, rel=0.03)


def test_before_any_answer_steady_windows_promise_that_all_are_alike() -> None:
    steady = _unanswered(0.0)
    assert steady.tail(0.9) == pytest.approx(1.0)
    assert _p90_s(steady, 20) == pytest.approx(0.02, rel=0.001)


def test_before_any_answer_a_tail_is_believed_of_the_spread_of_windows() -> None:
    """Half of the spread of speeds, a tenth or three of their mean."""
    assert _p90_s(_unanswered(0.1), 20) == pytest.approx(0.02 * 1.05, rel=0.01)
    assert _p90_s(_unanswered(0.3), 20) == pytest.approx(0.02 * 1.15, rel=0.03)


def test_what_was_believed_is_forgotten_as_answers_are() -> None:
    """Wild windows promise a tail of 1.3 and steady ones none; after thousands of answers that is all the same."""
    tails = []
    for wave in (0.0, 0.45):
        pace = _unanswered(wave)
        for _ in range(4_000):
            pace.answered(50.0, 1.01 * _p90_s(pace, 20) / pace.tail(0.9))
        tails.append(pace.tail(0.9))
    assert tails[0] == pytest.approx(tails[1], rel=0.01)


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
    assert pace.quantile_s(10, 0.9) is None


def test_answers_that_were_there_at_once_teach_nothing() -> None:
    """Whole answers that come sooner than their predicted first token: no time per token, and no division by it."""
    pace = Pace(PRIOR)
    pace.measured(1.0, 10, 0.0)
    assert pace.quantile_s(10, 0.9) is None
    pace.measured(2.0, 10, 0.02)
    pace.measured(3.0, 10, 0.0)
    assert _p90_s(pace, 10) == pytest.approx(0.02, rel=0.001)


@pytest.mark.parametrize(("share", "tail"), [(0.5, 1.0), (0.9, 1.8), (0.99, 1.98)])
def test_the_tail_is_that_of_the_share_that_is_asked_for(share: float, tail: float) -> None:
    """Answers spread evenly between nothing and twice the pace of the windows."""
    pace = Pace(PRIOR, share)
    for second in range(1, 4_001):
        pace.measured(float(second), 20, 0.02)
        pace.answered(second - 0.5, 0.02 * (second * 0.618 % 1.0) * 2.0)
    assert pace.tail(share) == pytest.approx(tail, rel=0.04)


def test_until_answers_tell_more_excess_is_believed_of_a_higher_quantile() -> None:
    def believed(share: float) -> float:
        pace = Pace(PRIOR, share)
        for second in range(1, 21):
            pace.measured(float(second), 20, 0.015 if second % 2 else 0.025)
        return pace.tail(share) - 1.0

    assert believed(0.99) == pytest.approx(2.0 * believed(0.9))
    assert believed(0.5) == pytest.approx(0.301 * believed(0.9), rel=0.01)

"""Attempts over requests, within a minute and within ten."""

from millgate.core.state.lane import Totals


def test_nothing_is_calm() -> None:
    assert Totals().amplification(100.0, 60.0) == 1.0


def test_a_storm_shows_within_a_minute_and_is_over_a_minute_after_its_end() -> None:
    totals = Totals()
    for second in range(300):
        totals.arrived(float(second), is_retry=False)
    for second in range(300, 360):
        for number in range(4):
            totals.arrived(float(second), is_retry=number > 0)
    assert totals.amplification(359.0, 60.0) == 4.0
    assert 1.4 <= totals.amplification(359.0, 600.0) <= 1.6
    for second in range(360, 430):
        totals.arrived(float(second), is_retry=False)
    assert totals.amplification(429.0, 60.0) == 1.0
    assert totals.amplification(429.0, 600.0) > 1.3


def test_retries_whose_requests_came_long_ago_are_attempts_for_one_request() -> None:
    totals = Totals()
    totals.arrived(0.0, is_retry=True)
    totals.arrived(1.0, is_retry=True)
    assert totals.amplification(2.0, 60.0) == 2.0

"""The breaker: opens on a row or a share of failures, tries singly, and comes back."""

import pytest

from millgate.core.limits.breaker import (
    BLAMELESS,
    CONSECUTIVE_FAILURES,
    FIRST_PAUSE_S,
    Breaker,
)
from millgate.core.measure import ENOUGH, WINDOW_S
from millgate.core.settings import LONGEST_HINT_S
from millgate.core.words import FailureKind


def opened(at: float, breaker: Breaker | None = None) -> Breaker:
    breaker = breaker or Breaker()
    for _ in range(CONSECUTIVE_FAILURES):
        breaker.failed(at)
    return breaker


def test_it_opens_with_the_fifth_failure_in_a_row() -> None:
    breaker = Breaker()
    for _ in range(CONSECUTIVE_FAILURES - 1):
        breaker.failed(1.0)
    assert breaker.allows(1.0, 0)
    breaker.failed(2.0)

    assert not breaker.allows(2.0, 0)
    assert (breaker.opened_at, breaker.next_try_at) == (2.0, 2.0 + FIRST_PAUSE_S)


def test_a_success_in_between_breaks_the_row() -> None:
    breaker = Breaker()
    for _ in range(4):
        breaker.failed(1.0)
        breaker.failed(1.0)
        breaker.succeeded(1.0)

    assert not breaker.is_open


def test_it_opens_when_half_of_enough_calls_in_the_window_fail() -> None:
    breaker = Breaker()
    for number in range(ENOUGH // 2):
        assert not breaker.is_open
        breaker.succeeded(0.1 * number)
        breaker.failed(0.1 * number)

    assert breaker.is_open


def test_failures_that_have_left_the_window_do_not_count() -> None:
    breaker = Breaker()
    for number in range(40):
        breaker.succeeded(number * 1.0)
        breaker.failed(number * 1.0 + 0.5)

    assert 2 * WINDOW_S >= ENOUGH
    assert breaker.opened_at == pytest.approx(9.5)
    sparse = Breaker()
    for number in range(40):
        sparse.succeeded(number * 1.2)
        sparse.failed(number * 1.2)
    assert not sparse.is_open


def test_after_the_pause_one_probe_at_a_time_and_a_success_closes() -> None:
    breaker = opened(0.0)

    assert not breaker.allows(FIRST_PAUSE_S - 0.01, 0)
    assert breaker.allows(FIRST_PAUSE_S, 0)
    assert not breaker.allows(FIRST_PAUSE_S, 1)
    breaker.succeeded(6.0)
    assert breaker.allows(6.0, 7)
    assert (breaker.opened_at, breaker.next_try_at) == (None, None)


def test_a_failed_probe_doubles_the_pause_up_to_a_bound() -> None:
    breaker, now, pauses = opened(0.0), 0.0, []
    for _ in range(7):
        assert breaker.next_try_at is not None
        pauses.append(breaker.next_try_at - now)
        now = breaker.next_try_at
        breaker.failed(now)

    assert pauses == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0]
    assert breaker.opened_at == 0.0


def test_late_news_of_requests_sent_before_it_opened_changes_nothing() -> None:
    breaker = opened(0.0)
    breaker.failed(1.0)
    breaker.succeeded(2.0)

    assert breaker.next_try_at == FIRST_PAUSE_S


def test_an_engine_that_breaks_again_soon_is_left_alone_longer_and_a_well_one_is_forgiven() -> None:
    breaker = opened(0.0)
    breaker.succeeded(5.0)
    opened(6.0, breaker)
    assert breaker.next_try_at == 16.0
    breaker.succeeded(16.0)
    opened(16.0 + LONGEST_HINT_S, breaker)

    assert breaker.next_try_at == 16.0 + LONGEST_HINT_S + FIRST_PAUSE_S


@pytest.mark.parametrize(("hint_s", "pause_s"), [(1.0, FIRST_PAUSE_S), (30.0, 30.0), (1e9, LONGEST_HINT_S)])
def test_the_engines_own_hint_lengthens_the_pause_within_its_bound(hint_s: float, pause_s: float) -> None:
    breaker = Breaker()
    for _ in range(CONSECUTIVE_FAILURES):
        breaker.failed(0.0, hint_s)

    assert breaker.next_try_at == pause_s


def test_only_what_blames_the_engine_counts() -> None:
    assert set(BLAMELESS) == {FailureKind.ERROR_EVENT, FailureKind.ABORT, FailureKind.NO_CREDIT}

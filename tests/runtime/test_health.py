"""One engine's standing, by arithmetic: looks, failures and times in, a stance out."""

import pytest

from millgate.runtime.health import EngineHealth, HealthSettings, Stance

PAGE, NO_PAGE = HealthSettings(), HealthSettings(target=None)


def _health(settings: HealthSettings = PAGE) -> EngineHealth:
    return EngineHealth(settings, 0.0)


def _fail(health: EngineHealth, *times: float, alone: bool = False) -> EngineHealth:
    for now in times:
        health.failed("connect", now, alone=alone)
    return health


def _looks(health: EngineHealth, good: bool, *times: float, alone: bool = False) -> list[Stance]:
    stances = []
    for now in times:
        health.looked(None if good else "its health page says 503", now, alone=alone)
        stances.append(health.stance)
    return stances


def _tried(health: EngineHealth, now: float) -> bool:
    """Send a request; return whether it is tried and keeps every other away."""
    took_work = health.takes_work
    return took_work and health.sent(now) and not health.takes_work


def test_a_killed_engine_whose_other_answers_break_off_too_is_down_and_not_failing_beside_it() -> None:
    """Its log has one line of it, and not a second one that it fails requests."""
    health = _fail(_health(), *[1.0] * 8)
    assert (health.stance, health.failing(1.0)) == (Stance.DOWN, "")


def test_two_bad_looks_take_it_out_and_two_good_ones_bring_it_back() -> None:
    health = _health()
    assert _looks(health, False, 1.0, 2.0) == [Stance.UP, Stance.DOWN]
    assert (health.since, health.why) == (2.0, "its health page says 503")
    assert _looks(health, True, 3.0, 4.0) == [Stance.DOWN, Stance.UP]
    assert (health.since, health.why) == (4.0, "")


def test_a_single_bad_look_is_forgotten_with_the_next_good_one() -> None:
    health = _health()
    for second in range(0, 20, 2):
        _looks(health, False, float(second))
        _looks(health, True, second + 1.0)
    assert health.stance is Stance.UP


def test_a_good_look_between_bad_ones_counts_from_the_start_again() -> None:
    health = _health()
    _looks(health, False, 1.0, 2.0)
    assert _looks(health, True, 3.0) == [Stance.DOWN]
    assert _looks(health, False, 4.0) == [Stance.DOWN]
    assert _looks(health, True, 5.0, 6.0) == [Stance.DOWN, Stance.UP]


def test_three_failures_in_a_row_within_ten_seconds_take_it_out() -> None:
    assert _fail(_health(), 1.0, 2.0).stance is Stance.UP
    health = _fail(_health(), 1.0, 2.0, 10.9)
    assert health.stance is Stance.DOWN
    assert health.why == "3 requests in a row failed: connect"
    assert _fail(_health(), 1.0, 2.0, 11.1).stance is Stance.UP


def test_a_success_between_failures_takes_them_back() -> None:
    health = _fail(_health(), 1.0, 2.0)
    health.succeeded(2.5)
    assert _fail(health, 3.0, 4.0).stance is Stance.UP


def _complain(health: EngineHealth, *times: float, common: bool) -> Stance:
    for now in times:
        health.complained("status 500", now, alone=False, common=common)
    return health.stance


def test_statuses_that_other_engines_answer_with_too_take_out_only_one_that_has_answered_nothing_for_a_while() -> (
    None
):
    working, fresh = _health(), _health()
    working.worked(0.5)
    assert _complain(working, 1.0, 2.0, 3.0, 4.0, common=True) is Stance.UP
    assert _complain(working, 10.6, 10.7, 10.8, common=True) is Stance.DOWN, (
        "it has answered nothing for 10 s"
    )
    assert _complain(fresh, 1.0, 2.0, 3.0, common=True) is Stance.DOWN


def test_a_status_that_no_other_engine_answers_with_takes_out_one_that_has_just_worked() -> None:
    health = _health()
    health.worked(0.5)
    assert _complain(health, 1.0, 2.0, 3.0, common=False) is Stance.DOWN
    assert health.why == "3 requests in a row failed: status 500"
    assert (health.complains(13.0), health.complains(13.1)) == (True, False)


def test_a_trial_that_fails_as_requests_do_elsewhere_is_made_again_by_the_next_request() -> None:
    health = _health(NO_PAGE)
    health.succeeded(0.5)
    _complain(health, 1.0, 1.0, 1.0, common=False)
    health.waited(2.1, alone=False)
    assert _tried(health, 2.2)
    assert _complain(health, 2.3, common=True) is Stance.TRIAL
    assert _tried(health, 2.4)
    health.succeeded(2.5)
    assert health.stance is Stance.UP


def test_an_engine_that_stays_because_it_is_alone_says_how_many_requests_failed_until_one_is_good() -> None:
    health = _fail(_health(NO_PAGE), 1.0, 2.0, alone=True)
    assert health.failing(2.0) == ""
    _fail(health, *[3.0 + number for number in range(28)], alone=True)
    assert (health.stance, health.failing(30.0)) == (Stance.UP, "30 requests in a row failed: connect")
    _looks(health, True, 31.0)
    assert health.failing(89.9), "a page that answers does not mend requests"
    assert health.failing(90.1) == "", "without requests there is no telling"
    health.succeeded(91.0)
    assert _fail(health, 92.0, 93.0, alone=True).failing(93.0) == ""


def test_a_trial_that_has_shown_nothing_is_made_again_by_the_next_request() -> None:
    health = _fail(_health(NO_PAGE), 1.0, 1.0, 1.0)
    health.waited(2.1, alone=False)
    for now in (2.2, 2.3):
        assert _tried(health, now)
        health.undecided()
    assert (health.stance, health.takes_work) == (Stance.TRIAL, True)
    assert _tried(health, 2.4)
    health.succeeded(2.5)
    assert health.stance is Stance.UP


def test_after_its_probation_and_good_looks_one_request_is_tried_and_no_second() -> None:
    health = _fail(_health(), 1.0, 1.0, 1.0)
    assert _looks(health, True, 1.2, 1.4, 1.9, 2.1) == [Stance.DOWN] * 3 + [Stance.TRIAL]
    assert _tried(health, 3.0)
    assert not health.sent(3.0)
    health.succeeded(3.5)
    assert (health.stance, health.takes_work) == (Stance.UP, True)


def test_a_probation_doubles_from_one_second_to_thirty() -> None:
    health, now = _fail(_health(NO_PAGE), 0.0, 0.0, 0.0), 0.0
    lengths = []
    for _ in range(7):
        begun = now
        while not health.takes_work:
            now += 0.125
            health.waited(now, alone=False)
        lengths.append(now - begun)
        assert health.sent(now)
        _fail(health, now)
    assert lengths == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_after_half_a_minute_of_good_work_a_probation_is_short_again() -> None:
    health = _health(NO_PAGE)
    for ejected, back in ((0.0, 1.0), (1.0, 3.0)):
        _fail(health, ejected, ejected, ejected)
        health.waited(back, alone=False)
        assert health.sent(back)
        health.succeeded(back)
    _fail(health, 40.0, 40.0, 40.0)
    health.waited(41.0, alone=False)
    assert health.stance is Stance.TRIAL


def test_a_trial_that_shows_nothing_lets_another_in() -> None:
    health = _fail(_health(NO_PAGE), 0.0, 0.0, 0.0)
    health.waited(1.0, alone=False)
    assert health.sent(1.0)
    health.waited(5.9, alone=False)
    assert not health.sent(5.9)
    health.waited(6.0, alone=False)
    assert _tried(health, 6.0)


def test_bad_looks_take_it_out_of_a_trial_too() -> None:
    health = _fail(_health(), 0.0, 0.0, 0.0)
    _looks(health, True, 0.5, 1.0)
    assert _looks(health, False, 2.0, 3.0) == [Stance.TRIAL, Stance.DOWN]


def test_who_is_alone_stays_whatever_requests_say_and_is_only_looked_at_more_often() -> None:
    health = _fail(_health(), *[1.0] * 20, alone=True)
    assert (health.stance, health.in_doubt) == (Stance.UP, True)
    assert _looks(health, True, 1.2, alone=True) == [Stance.UP]
    assert not health.in_doubt


def test_who_is_alone_goes_by_bad_looks_and_comes_back_with_the_first_good_one() -> None:
    health = _health()
    assert _looks(health, False, 1.0, 1.2, alone=True) == [Stance.UP, Stance.DOWN]
    assert _looks(health, True, 1.4, alone=True) == [Stance.UP]


@pytest.mark.parametrize("settings", [PAGE, NO_PAGE])
def test_who_is_left_alone_while_it_is_out_comes_back_without_waiting(settings: HealthSettings) -> None:
    health = _fail(_health(settings), 0.0, 0.0, 0.0)
    if settings.target is None:
        health.waited(0.2, alone=True)
    else:
        _looks(health, True, 0.2, alone=True)
    assert health.stance is Stance.UP


def test_late_news_of_requests_sent_before_changes_nothing_for_who_is_out() -> None:
    health = _fail(_health(), 0.0, 0.0, 0.0)
    _fail(health, 0.1, 0.2, 0.3)
    health.succeeded(0.4)
    assert (health.stance, health.since) == (Stance.DOWN, 0.0)

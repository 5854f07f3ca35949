"""An overload is known by its refusals: since when, and with which hints."""

from millgate.core.decisions import Yield
from millgate.core.words import Reason
from millgate.observe.refusals import QUIET_S, Refusals


def test_refusing_begins_with_the_first_refusal_after_quiet() -> None:
    refusals = Refusals()
    for at in (5.0, 10.0, 18.0, 18.0 + QUIET_S + 1.0):
        refusals.note(Yield(1, Reason.TOO_LATE, 1.0, True), at)
        assert refusals.is_refusing(at)
        assert refusals.refusing_since == (5.0 if at < 20.0 else at)
    assert not refusals.is_refusing(at + QUIET_S + 0.1)


def test_a_quota_is_no_overload() -> None:
    refusals = Refusals()
    refusals.note(Yield(1, Reason.QUOTA, 1.0, True), 5.0)

    assert not refusals.is_refusing(5.0)


def test_hints_are_those_of_the_last_seconds_that_are_worth_following() -> None:
    refusals = Refusals()
    told = ((0.0, 50.0, True), (15.0, 3.0, True), (15.5, 4.0, True), (16.0, 18.0, True), (17.0, 60.0, False))
    for at, hint_s, retry in told:
        refusals.note(Yield(1, Reason.TOO_LATE, hint_s, retry), at)

    assert refusals.hints(18.0) == (3.0, 18.0)
    assert refusals.hints(100.0) is None


def test_an_hour_of_refusals_is_summed_up_in_a_few_numbers() -> None:
    refusals = Refusals()
    for second in range(3600):
        refusals.note(Yield(1, Reason.TOO_LATE, float(second), True), float(second))

    assert refusals.hints(3599.0) == (3599.0 - QUIET_S, 3599.0)
    assert len(refusals._hints) <= QUIET_S + 1

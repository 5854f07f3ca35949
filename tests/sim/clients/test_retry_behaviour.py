"""Who comes back when: the SDKs to the letter, and those without manners."""

import pytest

from millgate.core.decisions import Yield
from millgate.core.words import Reason
from millgate.sim.clients.retry_behaviour import NEVER, Honouring, Refreshing, RetryBehaviour, Sdk
from millgate.sim.laws import constant
from millgate.sim.randomness import Draws, Streams


def dice(value: float = 0.0) -> Draws:
    return Streams(1).draws("dice", constant(value).sample)


def refused(hint_s: float, *, retry: bool = True) -> Yield:
    return Yield(1, Reason.SATURATED, hint_s, retry)


def test_an_sdk_takes_a_hint_to_the_letter_and_gives_up_after_two_retries() -> None:
    pauses = [Sdk().after_yield(refused(3.2), attempts, dice()) for attempts in (1, 2, 3)]

    assert pauses == [3.2, 3.2, None]


def test_an_sdk_stays_away_when_told_that_it_is_useless() -> None:
    assert Sdk().after_yield(refused(3.2, retry=False), 1, dice()) is None


def test_an_sdk_ignores_a_hint_beyond_two_minutes() -> None:
    assert Sdk().after_yield(refused(121.0), 1, dice()) == 0.5


def test_an_sdk_backs_off_from_half_a_second_doubling_to_eight_less_a_quarter_at_most() -> None:
    longest = [Sdk(9).after_failure(attempts, dice(0.0)) for attempts in range(1, 7)]
    shortest = [Sdk(9).after_failure(attempts, dice(1.0)) for attempts in range(1, 7)]

    assert longest == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0]
    assert shortest == [0.375, 0.75, 1.5, 3.0, 6.0, 6.0]


def test_the_honouring_come_as_often_as_they_are_told() -> None:
    assert Honouring().after_yield(refused(9.0), 40, dice()) == 9.0
    assert Honouring().after_yield(refused(9.0, retry=False), 1, dice()) is None


def test_the_naive_come_at_once_whatever_is_said() -> None:
    assert Refreshing(1.0, 3, 0.01).after_yield(refused(9.0, retry=False), 3, dice()) == 0.01
    assert Refreshing(1.0, 3, 0.01).after_yield(refused(9.0), 4, dice()) is None


def test_people_press_refresh_by_chance_and_not_for_ever() -> None:
    person = Refreshing(chance=0.5, most=2, pause_s=1.0)

    assert person.after_failure(1, dice(0.4)) == 1.0
    assert person.after_failure(1, dice(0.6)) is None
    assert person.after_failure(3, dice(0.4)) is None


@pytest.mark.parametrize("retry_behaviour", [NEVER, Sdk(), Refreshing(1.0), Honouring(), Refreshing()])
def test_nobody_comes_back_before_now(retry_behaviour: RetryBehaviour) -> None:
    draws = Streams(2).draws("dice", lambda dice, count: dice.random(count))
    pauses = [retry_behaviour.after_failure(1, draws) for _ in range(100)]

    assert all(pause is None or pause >= 0.0 for pause in pauses)
    assert retry_behaviour.labels in {True, False}

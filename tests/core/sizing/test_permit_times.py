"""How much longer: by those who lasted as long."""

import math
from random import Random

import pytest

from millgate.core.sizing.service_demand import PermitTimes


def learned(shares: list[float]) -> PermitTimes:
    times = PermitTimes()
    for share in shares:
        times.lasted(2.0 * share, 2.0)
    return times


def test_before_anything_is_learned_all_last_as_long_as_foreseen() -> None:
    assert PermitTimes().share_at(0.3, 0.9) == 1.0


def test_where_all_last_as_long_as_foreseen_so_will_this_one() -> None:
    times = learned([1.0] * 20)

    assert [times.share_at(so_far, level) for so_far in (0.0, 0.5, 0.99) for level in (0.1, 0.9)] == [1.0] * 6


def test_who_has_outlasted_all_is_late() -> None:
    assert learned([0.5, 1.0, 1.5]).share_at(1.6, 0.5) == 1.5


def test_an_exponential_answer_has_as_much_before_it_as_at_its_beginning() -> None:
    dice = Random(1)
    times = learned([dice.expovariate(1.0) for _ in range(128)])

    for so_far in (0.0, 0.5, 1.0):
        middle = times.share_at(so_far, 0.5) - so_far
        assert middle == pytest.approx(math.log(2.0), rel=0.25)


def test_the_levels_are_those_of_the_ones_that_lasted_longer() -> None:
    times = learned([0.25, 0.5, 0.75, 1.0, 1.25])

    assert [times.share_at(0.3, level) for level in (0.0, 0.125, 0.5, 0.875, 1.0)] == pytest.approx(
        [0.5, 0.5, 0.875, 1.25, 1.25]
    )


def test_old_ones_are_forgotten() -> None:
    assert learned([0.1] * 200 + [1.0] * 200).share_at(0.0, 0.0) == 1.0


def test_what_nothing_was_foreseen_of_teaches_nothing() -> None:
    times = PermitTimes()
    times.lasted(3.0, 0.0)
    assert times.share_at(0.0, 0.5) == 1.0

"""Shares: floors, then what is wanted, then what is left; never more than the amount."""

import pytest
from hypothesis import given, strategies as some

from millgate.cluster.division import Claim, divide

_amounts = some.floats(0.0, 1000.0)
_demands = some.lists(
    some.builds(
        Claim, some.floats(0.0, 50.0), some.floats(0.0, 500.0), some.floats(0.0, 500.0), some.just(0.0)
    ),
    min_size=1,
    max_size=8,
)
_waiting = some.lists(
    some.builds(
        Claim,
        some.floats(0.0, 50.0),
        some.floats(0.0, 500.0),
        some.floats(0.0, 500.0),
        some.floats(0.0, 60.0),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize(
    ("amount", "demands", "shares"),
    [
        (16, [(0, 2), (0, 20)], [2, 14]),
        (16, [(0, 0), (0, 0)], [8, 8]),
        (16, [(0, 20), (0, 20), (0, 20)], [6, 5, 5]),
        (16, [(4, 0), (0, 20)], [4, 12]),
        (2, [(4, 0), (4, 9)], [1, 1]),
        (0, [(1, 1)], [0]),
        (-3, [(1, 1)], [0]),
    ],
)
def test_an_amount_is_divided(amount: float, demands: list[tuple[float, float]], shares: list[float]) -> None:
    assert divide(amount, [Claim(*each) for each in demands], comes_whole=True, turn=0) == shares


def test_what_cannot_be_divided_goes_to_each_in_turn() -> None:
    demands = [Claim(0.0, 9.0)] * 3

    assert [divide(4, demands, comes_whole=True, turn=turn) for turn in range(3)] == [
        [2, 1, 1],
        [1, 2, 1],
        [1, 1, 2],
    ]


@given(_amounts, _demands, some.booleans(), some.integers(0, 9))
def test_the_sum_is_the_amount_and_no_wish_is_left_while_another_has_more(
    amount: float, demands: list[Claim], comes_whole: bool, turn: int
) -> None:
    shares = divide(amount, demands, comes_whole=comes_whole, turn=turn)
    unit = 1.0 if comes_whole else 0.0

    assert sum(shares) <= amount + 1e-6
    assert sum(shares) >= amount - unit - 1e-6
    for share, demand in zip(shares, demands, strict=True):
        if share < demand.wanted - unit - 1e-6:
            larger = [
                other
                for other, its in zip(shares, demands, strict=True)
                if other > max(share, its.floor) + unit + 1e-6
            ]
            assert larger == []


@given(_amounts, _waiting, some.integers(0, 9))
def test_however_long_requests_wait_the_sum_is_the_amount(
    amount: float, claims: list[Claim], turn: int
) -> None:
    shares = divide(amount, claims, comes_whole=True, turn=turn)

    assert amount - 1.0 - 1e-6 <= sum(shares) <= amount + 1e-6
    assert min(shares) >= 0.0


def test_what_is_free_goes_to_the_request_that_has_waited_longest() -> None:
    claims = [Claim(1.0, 20.0, 12.0, 1.0), Claim(1.0, 3.0, 2.0, 4.0), Claim(0.0, 0.0)]

    assert divide(16, claims, comes_whole=True, turn=0) == [13, 3, 0]


def test_a_replica_keeps_three_quarters_of_what_it_has_out_and_the_rest_goes_by_age() -> None:
    claims = [Claim(1.0, 20.0, 16.0, 0.5), Claim(1.0, 9.0, 0.0, 9.0)]

    assert divide(16, claims, comes_whole=True, turn=0) == [12, 4]

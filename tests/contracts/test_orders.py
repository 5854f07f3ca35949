"""What every queue order promises, run on each of them: a new order is one more line in `ORDERS`."""

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings, strategies as some

from contracts.waiting import Waiting
from millgate.core.queues import ranked
from millgate.core.queues.base import Order
from millgate.core.queues.fair import FairOrder
from millgate.core.queues.ranked import ArrivalOrder, DeadlineOrder
from millgate.core.queues.short_first import BoundedShortFirstOrder, ShortFirstOrder

ORDERS: list[Callable[[], Order]] = [
    ArrivalOrder,
    DeadlineOrder,
    ShortFirstOrder,
    partial(FairOrder, DeadlineOrder),
    partial(FairOrder, ShortFirstOrder),
]
# Orders whose next depends on what was admitted before, at bounds that a short test reaches.
WITH_HISTORY: list[Callable[[], Order]] = [
    partial(BoundedShortFirstOrder, 2),
    partial(FairOrder, partial(BoundedShortFirstOrder, 1)),
]
ON_EVERY_ORDER = pytest.mark.parametrize("make", ORDERS)
QUICK = settings(max_examples=60)


def _waiting(
    number: int,
    first_seen: float,
    deadline_s: float,
    patience_s: float,
    engine_s: float = 1.0,
    tenant: str = "",
) -> Waiting:
    lane_deadline = first_seen + deadline_s
    return Waiting(
        number,
        number,
        first_seen,
        lane_deadline,
        lane_deadline - patience_s,
        10 + number,
        5,
        100 + number,
        engine_s,
        tenant,
    )


def _crowd(drawn: list[tuple[int, int, int, int, str]]) -> list[Waiting]:
    """Return attempts with many ties in age, deadline and size: small integers as times."""
    return [
        _waiting(number, float(age), float(left), patience, float(size), tenant)
        for number, (age, left, patience, size, tenant) in enumerate(drawn)
    ]


def _crowds(tenants: str) -> some.SearchStrategy[list[Waiting]]:
    small = some.integers(1, 3)
    one = some.tuples(some.integers(0, 3), small, some.integers(0, 1), small, some.sampled_from(tenants))
    return some.lists(one, max_size=12).map(_crowd)


crowds = _crowds("a")
mixed_crowds = _crowds("abc")


def _filled(make: Callable[[], Order], crowd: list[Waiting]) -> Order:
    order = make()
    for each in crowd:
        order.add(each)
    return order


@pytest.mark.parametrize("make", ORDERS + WITH_HISTORY)
@QUICK
@given(crowd=mixed_crowds.filter(bool))
def test_the_last_is_the_last_of_the_order(make: Callable[[], Order], crowd: list[Waiting]) -> None:
    order = _filled(make, crowd)
    assert order.last() is [*order][-1]


@ON_EVERY_ORDER
@QUICK
@given(crowd=mixed_crowds)
def test_the_head_is_the_first_of_the_order_and_taking_heads_empties_it(
    make: Callable[[], Order], crowd: list[Waiting]
) -> None:
    order = _filled(make, crowd)
    listed = [each.attempt for each in order]
    taken = []
    while (head := order.head()) is not None:
        taken.append(head.attempt)
        order.remove(head)
        order.started(head, 0.0)

    assert taken == listed
    assert sorted(taken) == [each.attempt for each in crowd]
    assert len(order) == 0


@ON_EVERY_ORDER
@QUICK
@given(crowd=crowds)
def test_ahead_of_counts_exactly_those_that_come_before(
    make: Callable[[], Order], crowd: list[Waiting]
) -> None:
    """For a newcomer, and for one that is in; one tenant, none passed."""
    order = make()
    for each in crowd:
        foreseen = order.ahead_of(each)
        order.add(each)
        assert order.ahead_of(each) == foreseen

    assert [order.ahead_of(each) for each in order] == list(range(len(crowd)))


@ON_EVERY_ORDER
@QUICK
@given(crowd=crowds, leaving=some.sets(some.integers(0, 11)))
def test_who_leaves_from_the_middle_takes_nothing_else_along(
    make: Callable[[], Order], crowd: list[Waiting], leaving: set[int]
) -> None:
    order = _filled(make, crowd)
    stays = [each.attempt for each in order if each.attempt not in leaving]
    for each in crowd:
        if each.attempt in leaving:
            order.remove(each)

    assert [each.attempt for each in order] == stays
    assert len(order) == len(stays)


@ON_EVERY_ORDER
@QUICK
@given(crowd=mixed_crowds)
def test_inv_7_equals_keep_arrival_order_however_they_were_put_in(
    make: Callable[[], Order], crowd: list[Waiting]
) -> None:
    """INV-7: the order is a function of who waits, not of the history of the queue."""
    forward = [each.attempt for each in _filled(make, crowd)]
    backward = [each.attempt for each in _filled(make, crowd[::-1])]
    equals = [each.attempt for each in _filled(make, [_waiting(n, 1.0, 1.0, 0.0) for n in range(5)])]

    assert forward == backward
    assert equals == list(range(5))


@pytest.mark.parametrize("make", ORDERS + WITH_HISTORY)
@QUICK
@given(
    crowd=_crowds("ab"),
    moves=some.lists(some.sampled_from(["admit", "leave", "keep"]), min_size=12, max_size=12),
)
def test_nobody_is_ahead_of_exactly_the_one_who_would_be_next(
    make: Callable[[], Order], crowd: list[Waiting], moves: list[str]
) -> None:
    """Whatever went before: the governor lets a newcomer run at once exactly where nobody is ahead of it."""
    order = make()
    for newcomer, move in zip(crowd, moves, strict=False):
        foreseen = order.ahead_of(newcomer)
        assert foreseen <= len(order)
        order.add(newcomer)
        assert (order.head() is newcomer) == (foreseen == 0)
        assert [order.ahead_of(each) == 0 for each in order] == [True] + [False] * (len(order) - 1)
        if move == "keep":
            continue
        leaves = order.head() if move == "admit" else newcomer
        assert leaves is not None
        order.remove(leaves)
        if move == "admit":
            order.started(leaves, 0.0)
            order.settle(leaves, leaves.prompt_tokens, 9)


@ON_EVERY_ORDER
def test_somebody_who_is_not_in_cannot_be_removed(make: Callable[[], Order]) -> None:
    order = _filled(make, [_waiting(1, 0.0, 1.0, 0.0)])
    with pytest.raises(KeyError):
        order.remove(_waiting(2, 0.0, 1.0, 0.0))
    assert len(order) == 1


@ON_EVERY_ORDER
def test_a_clients_own_impatience_never_moves_it_forward(make: Callable[[], Order]) -> None:
    patient, impatient = _waiting(1, 0.0, 10.0, 0.0), _waiting(2, 0.0, 10.0, 9.9)
    assert [each.attempt for each in _filled(make, [patient, impatient])] == [1, 2]


@ON_EVERY_ORDER
def test_ten_thousand_wait_without_a_search(make: Callable[[], Order]) -> None:
    """The ceiling of a queue: every operation compares a few keys, none walks the line."""
    crowd = [_waiting(number, float(number % 97), 10.0, 0.0, float(number % 97)) for number in range(10_000)]
    order = _filled(make, crowd)
    if str(ranked.__file__).endswith(".so"):
        pytest.skip("compiled code compares plain numbers, which cannot count how often they are looked at")
    compared = 0

    class Counted(float):
        """A time that counts how often it is looked at."""

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return super().__eq__(other)

        __hash__ = float.__hash__

    middle = Waiting(20_000, 20_000, Counted(48.0), Counted(58.0), 58.0, 1, 1, 1, Counted(48.0))
    order.add(middle)
    order.ahead_of(middle)
    order.remove(middle)
    assert 3 < compared < 200
    assert len(order) == 10_000

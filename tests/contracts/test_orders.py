"""What every queue order promises, run on each of them: a new order is one more line in `ORDERS`."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings, strategies as some

from contracts.waiting import Waiting
from headgate.core.queues.arrival import ArrivalOrder
from headgate.core.queues.base import Order
from headgate.core.queues.deadline import DeadlineOrder

ORDERS: list[Callable[[], Order]] = [ArrivalOrder, DeadlineOrder]
ON_EVERY_ORDER = pytest.mark.parametrize("make", ORDERS)
QUICK = settings(max_examples=60, deadline=None, derandomize=True)


def _waiting(number: int, first_seen: float, deadline_s: float, patience_s: float) -> Waiting:
    lane_deadline = first_seen + deadline_s
    return Waiting(
        number, number, first_seen, lane_deadline, lane_deadline - patience_s, 10 + number, 5, 100 + number
    )


def _crowd(pairs: list[tuple[int, int, int]]) -> list[Waiting]:
    """Return attempts with many ties in age and deadline: small integers as times."""
    return [
        _waiting(number, float(age), float(left), patience)
        for number, (age, left, patience) in enumerate(pairs)
    ]


crowds = some.lists(
    some.tuples(some.integers(0, 3), some.integers(1, 3), some.integers(0, 1)), max_size=12
).map(_crowd)


def _filled(make: Callable[[], Order], crowd: list[Waiting]) -> Order:
    order = make()
    for each in crowd:
        order.add(each)
    return order


@ON_EVERY_ORDER
@QUICK
@given(crowd=crowds)
def test_the_head_is_the_first_of_the_order_and_taking_heads_empties_it(
    make: Callable[[], Order], crowd: list[Waiting]
) -> None:
    order = _filled(make, crowd)
    listed = [each.attempt for each in order]
    taken = []
    while (head := order.head()) is not None:
        taken.append(head.attempt)
        order.remove(head)

    assert taken == listed
    assert sorted(taken) == [each.attempt for each in crowd]
    assert len(order) == 0


@ON_EVERY_ORDER
@QUICK
@given(crowd=crowds)
def test_ahead_of_counts_exactly_those_that_come_before(
    make: Callable[[], Order], crowd: list[Waiting]
) -> None:
    """For somebody who is in, and for a newcomer, where `add` then says the same."""
    order = make()
    for each in crowd:
        foreseen = order.ahead_of(each)
        assert order.add(each) == foreseen

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
@given(crowd=crowds)
def test_tokens_and_bytes_are_the_sums_of_what_waits(make: Callable[[], Order], crowd: list[Waiting]) -> None:
    order = _filled(make, crowd)
    assert order.tokens == sum(each.prompt_tokens + each.output_tokens for each in crowd)
    assert order.body_bytes == sum(each.body_bytes for each in crowd)
    for each in crowd:
        order.remove(each)
    assert order.tokens == order.body_bytes == 0


@ON_EVERY_ORDER
@QUICK
@given(crowd=crowds)
def test_inv_7_equals_keep_arrival_order_however_they_were_put_in(
    make: Callable[[], Order], crowd: list[Waiting]
) -> None:
    """INV-7: the order is a function of who waits, not of the history of the queue."""
    forward = [each.attempt for each in _filled(make, crowd)]
    backward = [each.attempt for each in _filled(make, crowd[::-1])]
    equals = [each.attempt for each in _filled(make, [_waiting(n, 1.0, 1.0, 0.0) for n in range(5)])]

    assert forward == backward
    assert equals == list(range(5))


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
    crowd = [_waiting(number, float(number % 97), 10.0, 0.0) for number in range(10_000)]
    order = _filled(make, crowd)
    compared = 0

    class Counted(float):
        """A time that counts how often it is looked at."""

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return super().__eq__(other)

        __hash__ = float.__hash__

    middle = Waiting(20_000, 20_000, Counted(48.0), Counted(58.0), 58.0, 1, 1, 1)
    order.add(middle)
    order.ahead_of(middle)
    order.remove(middle)
    assert 3 < compared < 200
    assert len(order) == 10_000

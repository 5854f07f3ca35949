"""First come, first served, by the age of the request."""

from contracts.waiting import Waiting
from millgate.core.queues.ranked import ArrivalOrder


def test_a_recognised_retry_goes_before_those_who_came_after_its_first_attempt() -> None:
    order = ArrivalOrder()
    order.add(Waiting(1, 1, 5.0, 6.0, 6.0, 1, 1, 1))
    older = Waiting(2, 2, 3.0, 9.0, 9.0, 1, 1, 1)
    order.add(older)
    assert order.head() is older
    assert [each.attempt for each in order] == [2, 1]


def test_who_was_put_before_somebody_older_goes_before_it_in_order_of_turns() -> None:
    order = ArrivalOrder()
    order.add(Waiting(1, 1, 1.0, 6.0, 6.0, 1, 1, 1, turn=7))
    order.add(Waiting(2, 2, 2.0, 6.0, 6.0, 1, 1, 1, turn=8))
    order.add(Waiting(3, 3, 3.0, 6.0, 6.0, 1, 1, 1, turn=6, as_old_as=1.0))
    first = Waiting(4, 4, 4.0, 6.0, 6.0, 1, 1, 1, turn=5, as_old_as=1.0)
    order.add(first)
    assert order.head() is first
    assert [each.attempt for each in order] == [4, 3, 1, 2]

"""Earliest deadline of the lane first."""

from contracts.waiting import Waiting
from millgate.core.queues.ranked import DeadlineOrder


def test_the_earlier_deadline_goes_first_and_age_breaks_ties() -> None:
    order = DeadlineOrder()
    order.add(Waiting(1, 1, 1.0, 9.0, 9.0, 1, 1, 1))
    order.add(Waiting(2, 2, 2.0, 7.0, 7.0, 1, 1, 1))
    order.add(Waiting(3, 3, 0.5, 9.0, 9.0, 1, 1, 1))
    assert [each.attempt for each in order] == [2, 3, 1]

"""Earliest deadline first (Liu and Layland 1973): optimal while everything can still be served in time.

The deadline that orders is the lane's, counted from its origin: a time that a client gave itself may end its
wait sooner and never moves it forward, or the impatient would jump every queue (design section 4, step 4).
"""

from millgate.core.queues.base import Queued
from millgate.core.queues.ranked import Key, RankedQueue


def _by_lane_deadline(queued: Queued) -> Key:
    return (queued.lane_deadline, queued.first_seen, 0, queued.arrival_number)


class DeadlineOrder(RankedQueue):
    """Ordered by the lane's deadline, then by `first_seen`."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_by_lane_deadline)

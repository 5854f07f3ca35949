"""First come, first served, by the arrival of the *request*: a recognised retry gets its old place back."""

from millgate.core.queues.base import Queued
from millgate.core.queues.ranked import Key, RankedQueue


def _by_age(queued: Queued) -> Key:
    return (queued.as_old_as, 0.0, queued.turn, queued.arrival_number)


class ArrivalOrder(RankedQueue):
    """Ordered by age, the worst under overload when sizes differ much, but fair and predictable.

    The age is `first_seen`, or that of an older one before which the line of those who come back has put somebody.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_by_age)

"""First come, first served, by the arrival of the *request*: a recognised retry gets its old place back."""

from headgate.core.queues.base import Held
from headgate.core.queues.ranked import Key, RankedQueue


def _by_first_seen(held: Held) -> Key:
    return (held.first_seen, 0.0, held.arrival_number)


class ArrivalOrder(RankedQueue):
    """Ordered by `first_seen`; fair, predictable, and the worst under overload when sizes differ much."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_by_first_seen)

"""Every name that a configuration may choose a core policy by; to add one is to add its line here."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from millgate.core.queues.base import Order
from millgate.core.queues.ranked import ArrivalOrder, DeadlineOrder
from millgate.core.queues.short_first import BoundedShortFirstOrder, ShortFirstOrder
from millgate.core.settings import LaneSettings


def _short_first(max_overtakes: int | None) -> Order:
    return ShortFirstOrder() if max_overtakes is None else BoundedShortFirstOrder(max_overtakes)


ORDERS: Mapping[str, Callable[[LaneSettings], Order]] = MappingProxyType(
    {
        "arrival": lambda _: ArrivalOrder(),
        "deadline": lambda _: DeadlineOrder(),
        "short_first": lambda lane: _short_first(lane.max_overtakes),
    }
)

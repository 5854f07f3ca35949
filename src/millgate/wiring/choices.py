"""Every name that a configuration may choose a core policy by; to add one is to add its line here."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from millgate.core.queues.base import Order
from millgate.core.queues.ranked import ArrivalOrder, DeadlineOrder
from millgate.core.queues.short_first import BoundedShortFirstOrder, ShortFirstOrder
from millgate.core.settings import LaneSettings

ORDERS: Mapping[str, Callable[[LaneSettings], Order]] = MappingProxyType(
    {
        "arrival": lambda _: ArrivalOrder(),
        "deadline": lambda _: DeadlineOrder(),
        "short_first": lambda lane: (
            ShortFirstOrder() if lane.max_overtakes is None else BoundedShortFirstOrder(lane.max_overtakes)
        ),
    }
)

"""Every name that a configuration may choose a core policy by; to add one is to add its line here."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from headgate.core.queues.arrival import ArrivalOrder
from headgate.core.queues.base import Order
from headgate.core.queues.deadline import DeadlineOrder
from headgate.core.queues.short_first import ShortFirstOrder
from headgate.core.routing.base import Router
from headgate.core.routing.least_work import LeastWork
from headgate.core.settings import LaneSettings

ORDERS: Mapping[str, Callable[[LaneSettings], Order]] = MappingProxyType(
    {
        "arrival": lambda _: ArrivalOrder(),
        "deadline": lambda _: DeadlineOrder(),
        "short_first": lambda lane: ShortFirstOrder(lane.max_overtakes),
    }
)
ROUTERS: Mapping[str, Callable[[], Router]] = MappingProxyType({"least_work": LeastWork})

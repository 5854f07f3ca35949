"""Every name that a configuration may choose a core policy by; to add one is to add its line here."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from headgate.core.queues.arrival import ArrivalOrder
from headgate.core.queues.base import Order
from headgate.core.queues.deadline import DeadlineOrder
from headgate.core.routing.base import Router
from headgate.core.routing.least_work import LeastWork

ORDERS: Mapping[str, Callable[[], Order]] = MappingProxyType(
    {"arrival": ArrivalOrder, "deadline": DeadlineOrder}
)
ROUTERS: Mapping[str, Callable[[], Router]] = MappingProxyType({"least_work": LeastWork})

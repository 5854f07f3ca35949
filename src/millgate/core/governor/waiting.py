"""Index of queued requests by tenant; a tenant's requests keep their order."""

from math import inf


class Waiting:
    """How many requests of each tenant are queued, and the age of the youngest; bounded by the queues' own bounds."""

    __slots__ = ("_by_tenant",)

    def __init__(self) -> None:
        self._by_tenant: dict[str, tuple[int, float]] = {}

    def begins(self, tenant: str, as_old_as: float) -> None:
        """Note that a request of this age is queued."""
        known = self._by_tenant.get(tenant)
        if known is None:
            self._by_tenant[tenant] = 1, as_old_as
        else:
            self._by_tenant[tenant] = known[0] + 1, max(known[1], as_old_as)

    def ends(self, tenant: str) -> None:
        """Note that a queued request has left its queue."""
        count, youngest = self._by_tenant[tenant]
        if count > 1:
            self._by_tenant[tenant] = count - 1, youngest
        else:
            del self._by_tenant[tenant]

    def youngest(self, tenant: str) -> float:
        """Return the age of the tenant's youngest request since one was queued, an absolute core time; -inf where none is."""
        known = self._by_tenant.get(tenant)
        return -inf if known is None else known[1]

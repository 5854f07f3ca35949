"""Who of each tenant waits: of one tenant nobody is put before an older one that is queued."""

from math import inf


class Waiting:
    """How many of each tenant wait, and the age of the youngest; bounded by how many may wait at all."""

    __slots__ = ("_by_tenant",)

    def __init__(self) -> None:
        self._by_tenant: dict[str, tuple[int, float]] = {}

    def begins(self, tenant: str, as_old_as: float) -> None:
        """Take note that somebody of this age begins to wait."""
        known = self._by_tenant.get(tenant)
        if known is None:
            self._by_tenant[tenant] = 1, as_old_as
        else:
            self._by_tenant[tenant] = known[0] + 1, max(known[1], as_old_as)

    def ends(self, tenant: str) -> None:
        """Take note that somebody who has begun no longer waits."""
        count, youngest = self._by_tenant[tenant]
        if count > 1:
            self._by_tenant[tenant] = count - 1, youngest
        else:
            del self._by_tenant[tenant]

    def youngest(self, tenant: str) -> float:
        """Return the age of the youngest of this tenant since one of them waits, an absolute core time; -inf of nobody."""
        known = self._by_tenant.get(tenant)
        return -inf if known is None else known[1]

"""How many streams each tenant has here, and how many it may have: its cap, or this replica's share of that.

Replicas of a cluster share a tenant's cap in whole streams. Where it is smaller than the number of replicas some have none for a time: a
client that is refused there is told when a share can be there, and until then its replica asks for one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from millgate.core.settings import TenantSettings

MOST_LEASED: Final = 256
"""So many caps all replicas together lease at a time, for each costs the store time: of tenants with streams, told to come back, and others."""
SHARE_COMES_S: Final = 0.5
"""A share that another replica has idle is here after so long: two renewals."""


class StreamsUse(NamedTuple):
    """What one tenant has here of its cap, what it could use at once, and the least with which a request of it can go."""

    tenant: str
    cap: int
    used: int
    wanted: int
    floor: int


class StreamsShort(NamedTuple):
    """How many streams a tenant has and may have at all replicas, whether all of those are out, and for how many its clients are to be back."""

    out: int
    cap: int
    is_full: bool
    told: int


class _Told(NamedTuple):
    """So many streams were asked for by clients that are to be back by `until`, `most` of them by one."""

    until: float = 0.0
    streams: int = 0
    most: int = 0


class TenantStreams:
    """Counts streams, queued ones included, by tenant; without a cluster each may have its cap here."""

    def __init__(self, tenants: Sequence[TenantSettings]) -> None:
        self._inside: Counter[str] = Counter()
        self._told: dict[str, _Told] = {}
        self._shares: Mapping[str, int] | None = None
        self._elsewhere: Mapping[str, int] = {}
        self.reconfigure(tenants)

    def reconfigure(self, tenants: Sequence[TenantSettings]) -> None:
        """Take new caps; what runs goes on."""
        self._caps = {each.name: each.max_inflight for each in tenants if each.max_inflight is not None}
        self._told = {name: told for name, told in self._told.items() if name in self._caps}

    def leased(self, shares: Mapping[str, int], elsewhere: Mapping[str, int]) -> None:
        """Count against these shares of the caps, and know how many streams the tenants have at all other replicas."""
        self._shares, self._elsewhere = shares, elsewhere

    def shortfall(self, tenant: str, streams: int, now: float) -> StreamsShort | None:
        """Return what this tenant has and may have where so many more are too many; None where they may go."""
        cap = self._caps.get(tenant)
        if cap is None:
            return None
        inside = self._inside[tenant]
        most = cap if self._shares is None else min(cap, self._shares.get(tenant, 0))
        # A request of more than all of its tenant's streams runs alone.
        needed = inside + streams if inside else min(streams, cap)
        if needed <= most:
            return None
        told = self._told.get(tenant, _Told())
        elsewhere = self._elsewhere.get(tenant, 0)
        is_full = needed + elsewhere > cap
        return StreamsShort(inside + elsewhere, cap, is_full, told.streams if told.until >= now else 0)

    def begins(self, tenant: str, streams: int) -> None:
        """Count a request that is let in or queued."""
        if tenant in self._caps:
            self._inside[tenant] += streams
            told = self._told.get(tenant)
            if told is not None:
                self._told[tenant] = told._replace(streams=max(0, told.streams - streams))

    def ends(self, tenant: str, streams: int) -> None:
        """Count a request as over; one that began before its tenant had a cap was never counted."""
        left = self._inside[tenant] - streams
        if left > 0:
            self._inside[tenant] = left
        else:
            del self._inside[tenant]

    def told(self, tenant: str, streams: int, until: float, now: float, *, is_back: bool) -> None:
        """Note that a client was told to come back for its tenant's cap; one that `is_back` was counted before."""
        if tenant not in self._caps:
            return
        known = self._told.get(tenant, _Told())
        if known.until < now:
            known, is_back = _Told(), False
        more = 0 if is_back else streams
        self._told[tenant] = _Told(max(known.until, until), known.streams + more, max(known.most, streams))

    def uses(self, now: float, replicas: int) -> list[StreamsUse]:
        """Return what this replica holds and wants of the caps that it leases: of every tenant that has streams here, at least."""
        told = {name: each for name, each in self._told.items() if each.until >= now}
        first = sorted(self._caps, key=lambda name: (not self._inside[name], name not in told))
        count = max(MOST_LEASED // max(1, replicas), sum([self._inside[name] > 0 for name in first], 0))
        return [self._use(name, told.get(name, _Told())) for name in first[:count]]

    def _use(self, name: str, told: _Told) -> StreamsUse:
        cap, inside = self._caps[name], self._inside[name]
        floor = max(1, told.most if told.streams else 0) if inside or told.streams else 0
        return StreamsUse(name, cap, inside, max(inside, min(cap, inside + told.streams)), min(cap, floor))

"""How many streams each tenant has here, and how many it may have: its cap, or this replica's share of that.

A tenant's streams are a supply as a quota's bucket is, and its refused clients stand in line for them as for that
(`quota_lines`).

Replicas of a cluster share a tenant's cap in whole streams. Where it is smaller than the number of replicas some have
none for a time: a client that is refused there is told when a share can be there, and until then its replica asks for
one.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Final, NamedTuple

from millgate.core.governor.quota_lines import QuotaLines
from millgate.core.measure import Ewma
from millgate.core.quotas.bucket import Supply
from millgate.core.settings import TenantSettings
from millgate.core.snapshot import PoolLine, SharedNumber

MOST_LEASED: Final = 256
"""So many caps all replicas together lease at a time, for each costs the store time: of tenants with streams, told to come back, and others."""
TENANT_LINE: Final = "tenant/"
SHARE_COMES_S: Final = 0.5
"""A share that another replica has idle is here after so long: two renewals."""


class OwnStreams(Supply):
    """The streams of one tenant: `cap` may be out at all replicas (None: any), `share` of them here; `inside` are, and `elsewhere` at others.

    Of those inside so many are `held`: of clients that are due, until a stream ends for each.
    """

    def __init__(self) -> None:
        super().__init__(1.0)
        self.cap: int | None = None
        self.inside = self.held = self.share = self.elsewhere = 0
        self._service_s = Ewma(0.0, prior_samples=0.0)

    @property
    def running(self) -> int:
        """How many are inside with a stream, or wait for none of their tenant's."""
        return self.inside - self.held

    def needs(self, streams: int) -> int:
        """Return how many have to be free for a request of so many: one of more than all runs alone."""
        return streams if self.cap is None else min(streams, self.cap)

    def level(self, now: float) -> float:  # noqa: ARG002 - streams end, they do not come with time
        """Return how many are free; below zero for those that are held."""
        return float(self.share - self.inside)

    def wait_s(self, amount: float, now: float) -> float:
        """Return how long until so many are free, as streams usually end; one of another replica comes sooner."""
        missing = amount - self.level(now)
        if missing <= 0.0:
            return 0.0
        is_out = self.cap is not None and self.inside + self.elsewhere + amount > self.cap
        return missing / self.rate_per_s if is_out else SHARE_COMES_S

    def begins(self, streams: int, service_s: float) -> None:
        """Count a request that is let in or queued, whose streams are expected to be out for so long."""
        self.inside += streams
        if streams >= self._wanted:
            self._wanted = 0.0
        if self.cap is not None and service_s > 0.0:
            self._service_s.add(service_s)
            self.rate_per_s = self.cap / self._service_s.mean

    def ends(self, streams: int) -> None:
        """Count a request as over."""
        self.inside = max(0, self.inside - streams)

    def holds(self, streams: int) -> None:
        """So many of those inside wait for a stream; below zero, they do no more."""
        self.held += streams


class Held(NamedTuple):
    """What a held request waits for since then: so many of its tenant's streams; its `turn` in the line for them."""

    own: OwnStreams
    streams: int
    turn: int | None
    since: float


class TenantStreams:
    """Counts streams, queued ones included, by tenant; without a cluster each may have its cap here."""

    def __init__(self, tenants: Sequence[TenantSettings]) -> None:
        self._known: dict[str, OwnStreams] = {}
        self._shares: Mapping[str, int] | None = None
        self._elsewhere: Mapping[str, int] = {}
        self._held: dict[int, Held] = {}
        self.reconfigure(tenants, {})

    def reconfigure(self, tenants: Sequence[TenantSettings], inside: Mapping[str, int]) -> None:
        """Take new caps; what runs goes on, and so much of each tenant is `inside`, whether it had a cap or not."""
        caps = {each.name: each.max_inflight for each in tenants if each.max_inflight is not None}
        running = {name: own for name, own in self._known.items() if name in caps or own.inside}
        self._known = {name: OwnStreams() for name in caps} | running
        for name, own in self._known.items():
            own.inside = inside.get(name, 0)
        self._divide(caps)

    def leased(self, shares: Mapping[str, int], elsewhere: Mapping[str, int]) -> None:
        """Count against these shares of the caps, and know how many streams the tenants have at all other replicas."""
        self._shares, self._elsewhere = shares, elsewhere
        self._divide({name: own.cap for name, own in self._known.items()})

    def _divide(self, caps: Mapping[str, int | None]) -> None:
        shares = self._shares
        for name, own in self._known.items():
            cap = caps.get(name)
            share = 0 if cap is None else cap if shares is None else min(cap, shares.get(name, 0))
            own.cap, own.share, own.elsewhere = cap, share, self._elsewhere.get(name, 0)

    def of(self, tenant: str) -> OwnStreams | None:
        """Return the streams of a tenant that has a cap; None of any other."""
        own = self._known.get(tenant)
        return None if own is None or own.cap is None else own

    def ends(self, tenant: str, attempt: int, streams: int) -> None:
        """Count a request as over; one whose tenant has no cap may not be counted."""
        self._lets_go(attempt)
        if (own := self._known.get(tenant)) is not None:
            own.ends(streams)

    def holds(self, attempt: int, held: Held) -> None:
        """This attempt, which is inside, waits for a stream."""
        self._held[attempt] = held
        held.own.holds(held.streams)

    def held(self, attempt: int) -> Held | None:
        """Return what this attempt waits for; None where that is none of its tenant's streams."""
        return self._held.get(attempt)

    def waiting(self) -> dict[int, None]:
        """Return the attempts that wait for a stream; those for whom one has ended do no more, who came first before others."""
        waiting: dict[int, None] = {}
        for attempt, (own, streams, _turn, _since) in tuple(self._held.items()):
            if own.running + own.needs(streams) <= own.share or own.cap is None:
                self._lets_go(attempt)
            else:
                waiting[attempt] = None
        return waiting

    def _lets_go(self, attempt: int) -> None:
        if (held := self._held.pop(attempt, None)) is not None:
            held.own.holds(-held.streams)

    def uses(
        self, now: float, replicas: int, lines: QuotaLines, lingers_s: float
    ) -> list[tuple[SharedNumber, PoolLine]]:
        """Return what this replica has and wants of the caps that it leases, and their lines: of every tenant that has streams here, at least."""
        known = [(name, own) for name, own in self._known.items() if own.cap is not None]
        first = sorted(known, key=lambda each: (not each[1].inside, not each[1].wanted(now)))
        count = max(MOST_LEASED // max(1, replicas), sum([own.inside > 0 for _, own in first], 0))
        since = {held.own: held.since for held in reversed(self._held.values())}
        return [
            _use(name, own, lines, now, now - since.get(own, now), lingers_s) for name, own in first[:count]
        ]


def _use(
    name: str, own: OwnStreams, lines: QuotaLines, now: float, waits_s: float, lingers_s: float
) -> tuple[SharedNumber, PoolLine]:
    cap, running, most = own.cap or 0, own.running, int(own.wanted(now))
    share, held = lines.attendance.of_tenant(name), own.held
    wanted = max(running, min(cap, running + max(ceil(lines.promised(own, share)) + held, most)))
    floor = min(cap, max(1, most)) if running or most else 0
    number = SharedNumber("tenant", (name,), cap, running, wanted, floor, lingers_s, waits_s=waits_s)
    promised = held + lines.missing(own, now, share)
    return number, PoolLine(TENANT_LINE + name, running, promised, *lines.attendance.counts(name))

"""One bound over all request bodies being received and held (INV-5), and shares of it for tenants and peers.

Shares follow what is left (dynamic thresholds: Choudhury and Hahne 1998): a holder may have so many times as much as
stays free. So a holder that is alone has most of the bound, and the next one always finds room.

Of what comes in pieces that may wait, a piece is taken only if the rest could follow, at the latest when all that is whole
has gone (a safe state: Dijkstra's banker, 1965). So parts never wait for each other, and a promise books nothing.
"""

from typing import Final

DEFAULT_BUDGET_BYTES: Final = 256 * 1000 * 1000
"""The bound of INV-5: 256 MB over bodies being received and held."""

TENANT_RATIO: Final = 1
"""A tenant may hold as much as stays free: half of the bound when it is alone."""
PEER_RATIO: Final = 3
"""A peer may hold three times as much as stays free, three quarters when it is alone. Many tenants may share a proxy,
and behind it a tenant at its own share leaves room for the others."""


class ByteBudget:
    """Counts bytes against one bound; shared by every door of a process.

    A holder releases exactly what it reserved, at the latest when its exchange ends. `share` books the same
    bytes on a tenant and a peer too.
    """

    def __init__(self, limit_bytes: int = DEFAULT_BUDGET_BYTES) -> None:
        if limit_bytes < 0:
            raise ValueError(f"limit_bytes is {limit_bytes}, the least is 0")
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.tenants: dict[str, int] = {}
        """What each tenant holds; those that hold nothing are not kept."""
        self.peers: dict[str, int] = {}
        self.whole: dict[str, int] = {}
        """What of it is settled: by tenant, by peer, and by `_ALL`, which names neither."""

    def reserve(self, size_bytes: int) -> bool:
        """Take this many bytes if they fit; return whether they did."""
        if self.held_bytes + size_bytes > self.limit_bytes:
            return False
        self.held_bytes += size_bytes
        return True

    def release(self, size_bytes: int) -> None:
        """Give back what was reserved."""
        self.held_bytes -= size_bytes
        assert self.held_bytes >= 0, "more was released than reserved"

    def share(self, tenant: str, peer: str) -> "Share":
        """Return where the bodies of this tenant from this peer are booked; empty names have no share of their own."""
        return Share(self, tenant, peer)


class Share:
    """Books bytes on the whole budget, on one tenant and on one peer: as `ByteBudget` does, within their shares."""

    def __init__(self, budget: ByteBudget, tenant: str, peer: str) -> None:
        self._budget = budget
        self._tenant = tenant
        self._peer = peer

    @property
    def most_bytes(self) -> int:
        """The most that can be held here, while nothing else is."""
        ratio = TENANT_RATIO if self._tenant else PEER_RATIO
        return self._budget.limit_bytes * ratio // (ratio + 1)

    def fits(self, size_bytes: int) -> bool:
        """Say whether this many bytes could be taken now, and take none."""
        return self._fits(size_bytes, 0, 0, 0)

    def _fits(self, size_bytes: int, gone: int, gone_of_tenant: int, gone_of_peer: int) -> bool:
        """Say whether they could be taken when this much had gone, and of it so much of the tenant's and of the peer's."""
        budget, tenant, peer = self._budget, self._tenant, self._peer
        free_bytes = budget.limit_bytes - budget.held_bytes + gone - size_bytes
        if free_bytes < 0:
            return False
        tenant_bytes = budget.tenants.get(tenant, 0) - gone_of_tenant + size_bytes if tenant else 0
        if tenant_bytes > TENANT_RATIO * free_bytes:
            return False
        return not peer or budget.peers.get(peer, 0) - gone_of_peer + size_bytes <= PEER_RATIO * free_bytes

    def reserve(self, size_bytes: int, rest_bytes: int = 0) -> bool:
        """Take this many bytes if they fit within the whole and both shares, and if the rest could follow; return whether they did."""
        if not size_bytes:
            return True
        if not self.fits(size_bytes):
            return False
        budget, whole = self._budget, self._budget.whole
        if rest_bytes and not self._fits(
            size_bytes + rest_bytes,
            whole.get(_ALL, 0),
            whole.get(self._tenant, 0),
            whole.get(self._peer, 0),
        ):
            return False
        budget.held_bytes += size_bytes
        _book(budget.tenants, self._tenant, size_bytes)
        _book(budget.peers, self._peer, size_bytes)
        return True

    def release(self, size_bytes: int) -> None:
        """Give back what was reserved."""
        if size_bytes:
            self._budget.release(size_bytes)
            _book(self._budget.tenants, self._tenant, -size_bytes)
            _book(self._budget.peers, self._peer, -size_bytes)

    def settle(self, size_bytes: int) -> None:
        """Count what was taken as whole: it needs no more and comes free by itself. Below zero: it is about to be released."""
        if size_bytes:
            for name in {_ALL, self._tenant, self._peer}:
                _book(self._budget.whole, name, size_bytes)


_ALL: Final = "*"


def _book(holders: dict[str, int], name: str, size_bytes: int) -> None:
    if not name:
        return
    held_bytes = holders.get(name, 0) + size_bytes
    assert held_bytes >= 0, "more was released than reserved"
    if held_bytes:
        holders[name] = held_bytes
    else:
        del holders[name]

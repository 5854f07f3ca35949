"""A store in this process: the ledger behind the contract, for processes of one host and for tests."""

from collections.abc import Callable

from millgate.cluster.contract import Granted, Renewal
from millgate.cluster.ledger import LeaseLedger


class MemoryStore:
    """Keeps leases in memory; `clock` gives monotonic seconds.

    `may_have_lost` says that replicas may hold leases of an earlier store, whose process ended: then for one lease each gets at most
    what it holds.
    """

    def __init__(self, clock: Callable[[], float], *, may_have_lost: bool = False) -> None:
        self._clock = clock
        self._ledger = LeaseLedger(may_have_lost=may_have_lost)

    async def renew(self, renewal: Renewal) -> Granted:
        """Renew this replica's leases; StoreUnavailableError when they cannot be, FencedError when they have ended."""
        return self._ledger.renew(renewal, self._clock())

    async def leave(self, replica: str, epoch: int) -> None:
        """Give back everything that this replica does not use; of an epoch that has ended, nothing."""
        self._ledger.leave(replica, epoch)

    async def close(self) -> None:
        """End nothing: there is no connection."""

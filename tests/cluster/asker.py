"""A replica that asks a store in a test, as its renewer would."""

import asyncio

from millgate.cluster.contract import (
    FencedError,
    Granted,
    Holding,
    Kind,
    Renewal,
    StoreUnavailableError,
    share_key,
)
from millgate.cluster.redis_store import RedisStore

STREAMS, RATE = share_key(Kind.STREAMS, "gpu"), share_key(Kind.RATE, "acme", "tpm")


class Asker:
    """One replica that asks a store, and repeats its call as a renewer does."""

    def __init__(self, store: RedisStore, name: str = "one", lease_s: float = 1.0) -> None:
        self.store, self.name, self.lease_s = store, name, lease_s
        self.used = 1.0
        self.granted: Granted | None = None

    def share(self, key: str) -> float:
        assert self.granted is not None
        return {share.key: share.amount for share in self.granted.shares}[key]

    async def renew(self) -> Granted:
        epoch = self.granted.epoch if self.granted else 0
        applied = self.granted.number if self.granted else 0
        held = self.share(STREAMS) if self.granted else 0.0
        holdings = (
            Holding(STREAMS, 16.0, self.used, 20.0, 1.0, 3.0, held=held),
            Holding(RATE, 10.0, 0.0, 99.0),
        )
        self.granted = await self.store.renew(Renewal(self.name, epoch, applied, self.lease_s, holdings))
        return self.granted

    async def until_whole(self, *, anew: bool = False) -> None:
        """Renew until all is granted, `anew` where it was before; not for long."""
        self.granted = None if anew else self.granted
        async with asyncio.timeout(10.0):
            while not (self.granted and self.share(STREAMS) == 16.0):
                try:
                    await self.renew()
                except FencedError:
                    self.granted = None
                except StoreUnavailableError:
                    pass
                await asyncio.sleep(0.1)

    async def refusal(self, of: str = "") -> str:
        """Return why the store does not grant, once it does not for this reason."""
        for _ in range(100):
            try:
                await self.renew()
            except StoreUnavailableError as problem:
                if of in str(problem):
                    return str(problem)
            await asyncio.sleep(0.02)
        raise AssertionError("the store still answers")

"""What replicas and their store tell each other: holdings and wishes in, shares out, one round trip for everything that a replica shares.

Every shared number is an amount that replicas hold at the same time: an engine's streams, its KV tokens, its prompt
tokens not yet read; a bucket's rate and its burst; a tenant's streams; the retries of the last ten seconds. The store
divides each among the replicas by demand, and the sum of what they hold is never above the whole. A share is a lease:
it ends by itself.

A shared number is named by its key: a kind, a colon, and names (`streams:gpu-0`, `rate:tenant/acme/tpm`). Streams and
tokens that are held come in whole numbers, rates and bursts in any. What each kind reports:

- streams, KV and prompt tokens: `used` is what is out, `lingers_s` the longest that it may last, `seen` the engine's gauge.
- a tenant's streams and retries are reported like an engine's, without a gauge. A retry is `used` for ten seconds.
- a rate has `used` 0: it ends the moment that its share does.
- a burst has `used` 0, too. A bucket's level never rises with its share of the burst, and a replica that joins starts its bucket empty:
  then levels rise by shared rates alone, and what all replicas take in any window is at most burst + rate x time (INV-6). Of a day
  the same share is left where replicas come or go: those that leave are believed to have used as much of theirs as the others.
"""

from enum import StrEnum
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote

KEPT_S: Final = 120.0
"""A board ends when nothing has been put on it for so long: twice the longest hint."""


class Kind(StrEnum):
    """What kind of number is shared; a key starts with it."""

    STREAMS = "streams"
    KV = "kv"
    PREFILL = "prefill"
    RATE = "rate"
    BURST = "burst"
    ACCOUNT_RATE = "account_rate"
    ACCOUNT_BURST = "account_burst"
    TENANT = "tenant"
    RETRIES = "retries"


WHOLE_KINDS: Final = frozenset({Kind.STREAMS, Kind.KV, Kind.PREFILL, Kind.TENANT, Kind.RETRIES})
"""Kinds whose shares are whole numbers."""


def share_key(kind: Kind, *names: str) -> str:
    """Return the key of a shared number; the same names give the same key at every replica, others another."""
    return f"{kind.value}:{'/'.join(quote(name, safe='') for name in names)}"


def comes_whole(key: str) -> bool:
    """Return whether shares of this number are whole numbers."""
    return key.partition(":")[0] in WHOLE_KINDS


class Holding(NamedTuple):
    """What one replica holds and wants of one shared number; all amounts in the number's own unit.

    `key` names the number the same way at every replica. `whole` is the limit as this replica knows it; of unequal ones
    the store divides the least. `used` is out now and cannot be taken back before it ends. `wanted` is what the replica
    could use at once, `used` included, and less than that where it leaves others more as its own ends. `floor` is the
    least that it is to have while its lease lives, where the whole is enough for all floors. `lingers_s` is how long
    what is used may last, if this replica is never heard of again. `seen` is how much of it the engine itself says to
    be running for all replicas together, None where it says nothing, and `seen_age_s` how long ago it said so. `held`
    is what this replica may use now, by its lease or its failure policy; the renewer fills it in, and a store counts it
    where it knows of no lease.
    """

    key: str
    whole: float
    used: float
    wanted: float
    floor: float = 0.0
    lingers_s: float = 0.0
    seen: float | None = None
    seen_age_s: float = 0.0
    waits_s: float = 0.0
    held: float = 0.0


class Line(NamedTuple):
    """What waits before one pool: how many requests are queued, and the work of the line in seconds of one stream.

    Or before one quota, or the cap of one tenant: `work_s` is then an amount of that.

    The line is who is queued and who was told to come back. `came` and `told` are weights of clients: who came when told, by any
    replica, and who was told here. All of them are summed over replicas.
    """

    pool: str
    queued: int
    work_s: float
    came: float = 0.0
    told: float = 0.0


class Renewal(NamedTuple):
    """One replica renews everything that it holds.

    `replica` names one run of one process, so that a process that starts again has another name. `lease_s` is the same at every
    replica, and at least four times the pause between its renewals. `used` of every holding is read after `applied`.
    `epoch` is the one that its last answer named, 0 before the first: a replica with another epoch has been given up, and what it
    held has gone to others. `applied` is the number of the last answer that its governor has taken over: what that answer lowered
    is free for others from now on, not sooner.
    """

    replica: str
    epoch: int
    applied: int
    lease_s: float
    holdings: tuple[Holding, ...]
    lines: tuple[Line, ...] = ()


class LeasedShare(NamedTuple):
    """The share of one number that a replica may hold until its lease ends.

    It may be less than what is used: then nothing new starts until enough has ended.
    """

    key: str
    amount: float


class Granted(NamedTuple):
    """The answer to a renewal: shares until `lease_s` after the renewal was sent.

    `number` counts the answers to this replica, for its next `applied`. `replicas` is how many hold a lease, this one included.
    `lines` are those of the other replicas, summed by pool.
    """

    epoch: int
    number: int
    lease_s: float
    replicas: int
    shares: tuple[LeasedShare, ...]
    lines: tuple[Line, ...] = ()


class Heard(NamedTuple):
    """What other replicas have said, oldest first, and the `place` from which to go on."""

    said: tuple[bytes, ...]
    place: str


class StoreUnavailableError(Exception):
    """The store did not answer in time or cannot keep leases now; the text says why and holds no secret."""


class BoardRefusedError(StoreUnavailableError):
    """The store answers and keeps no board for this replica: it lacks a right, or the store the memory."""


class FencedError(Exception):
    """This replica's epoch has ended: its shares are gone, and it joins anew with epoch 0."""


class Store(Protocol):
    """Divides shared numbers among replicas; safe to ask from one task at a time for each replica."""

    async def renew(self, renewal: Renewal) -> Granted:
        """Renew this replica's leases; StoreUnavailableError when they cannot be, FencedError when they have ended."""

    async def leave(self, replica: str, epoch: int) -> None:
        """Give back everything that this replica holds; of an epoch that has ended, nothing."""

    async def close(self) -> None:
        """End the connections to the store; leases stay until they end."""


class Board(Protocol):
    """Where replicas put up news for all others; it keeps the newest, and nothing depends on any of it."""

    async def exchange(self, replica: str, said: bytes, place: str) -> Heard:
        """Put up what is `said`, if anything, and return what others have said since this `place`, all that is kept where it is empty.

        StoreUnavailableError where that cannot be: what was said may be lost then.
        """

"""What recognises a request that comes back: its ticket, and a hash that says nothing without the process's key."""

import os
from collections.abc import Callable
from hashlib import blake2b
from time import time
from typing import Final

from millgate.core.decisions import Yield
from millgate.dialects.ticket import ASKED, HEADER, Ticket, Tickets

# So many bits fit in what CPython computes with without an allocation.
_MASK: Final = (1 << 60) - 1
_HEAD_BYTES: Final = 1024
_TAIL_BYTES: Final = 3072
"""A conversation's newest turn is at the end: the tail tells requests apart, the head tells users apart."""
_KEY_BYTES: Final = 32
_SERIAL_BYTES: Final = 8
# Other uses of the same key have other hashes.
_PURPOSE: Final = b"millgate-told"


class TicketDesk:
    """Issues and redeems tickets at the HTTP door, in core time; `now` reads the core's clock, `wall` the one that replicas have in common.

    Without a `key` it makes one, so that tickets are good until this process ends, and no step of the wall clock touches them.
    ValueError for a key of a wrong length, which is not told.
    """

    def __init__(
        self, now: Callable[[], float], key: bytes | None = None, wall: Callable[[], float] = time
    ) -> None:
        ahead = wall() - now()
        self._now = now
        self.wall = wall if key else lambda: now() + ahead
        """The clock that replicas have in common; of those with a store it is the store's."""
        serial = int.from_bytes(os.urandom(_SERIAL_BYTES))
        self._tickets = Tickets(key or os.urandom(_KEY_BYTES), serial)

    def redeem(self, value: bytes, tenant: str) -> Ticket | None:
        """Return what this header value proves, in core time; None for what is no good ticket, such as `1`."""
        if value == ASKED:
            return None
        wall = self.wall()
        ticket = self._tickets.redeem(value, tenant, wall)
        if ticket is None:
            return None
        ahead = wall - self._now()
        return Ticket(ticket.first_seen - ahead, ticket.due_at - ahead, ticket.hint_s)

    def line(self, tenant: str, refused: Yield) -> bytes:
        """Return the header line with which this refusal's client proves its age when it is back."""
        wall, now = self.wall(), self._now()
        due_at = wall + refused.retry_after_s
        value = self._tickets.issue(tenant, wall - (now - refused.first_seen), due_at, wall)
        return b"%b: %b\r\n" % (HEADER, value)


def fingerprint(secret: bytes, tenant: str, size_bytes: int, body: bytes) -> int:
    """Return 60 bits that equal requests of one tenant share.

    SipHash-1-3 (Aumasson and Bernstein 2012), which is how CPython hashes bytes, under the interpreter's key and
    `secret`; keyed BLAKE2b takes five times as long. `body` is the whole body of `size_bytes`, or what `ends` has kept of
    it.
    """
    return hash(b"%b%b\0%d\0%b" % (secret, tenant.encode(), size_bytes, ends(body))) & _MASK


def ends(body: bytes) -> bytes:
    """Return all of a body that `fingerprint` looks at: a request that runs need not keep the rest."""
    if len(body) <= _HEAD_BYTES + _TAIL_BYTES:
        return body
    return body[:_HEAD_BYTES] + body[-_TAIL_BYTES:]


class KeptBody:
    """A request's body as long as it may have to be sent (again), and what recognises the request after that."""

    def __init__(self, data: bytes) -> None:
        self.data = self._remembered = data
        self._size_bytes = len(data)

    def drop(self) -> bool:
        """Keep only what the fingerprint needs; return whether that is less than the whole."""
        self.data = b""
        self._remembered = ends(self._remembered)
        return self._size_bytes > len(self._remembered)

    def fingerprint(self, secret: bytes, tenant: str) -> int:
        """Return what the request is recognised by when it comes back."""
        return fingerprint(secret, tenant, self._size_bytes, self._remembered)

    def mark(self, key: bytes, tenant: str) -> int:
        """Return 64 bits that equal requests of one tenant share in all processes that have this key: keyed BLAKE2b of what `fingerprint` looks at."""
        said = b"%b\0%d\0%b" % (tenant.encode(), self._size_bytes, ends(self._remembered))
        return int.from_bytes(blake2b(said, digest_size=8, key=key, person=_PURPOSE).digest())

"""A ticket: the first arrival of a refused request, signed, so that its client may bring it back.

The core recognises most retries by their fingerprint. A client that changes its body between two attempts (a fresh
seed, a time stamp), or comes back to another replica, is unknown there, unless it carries its own proof. So a client
asks with `x-millgate-ticket: 1` gets one in the header `x-millgate-ticket` of a refusal that is worth coming back
from, and sends it as that header's value next time. It buys the old arrival time, and nothing else.

    ticket = base64url(serial, issued, age, hint, tag)      48 characters
    tag    = keyed BLAKE2b-96 over the four fields and the tenant's name (RFC 7693: keyed, it is a MAC by itself)

Times are wall time, because replicas share no other clock; the caller adds and subtracts the difference to the
core's monotonic clock. A ticket is good for `VALID_S` from issue, once, and for the tenant that it was given to. What
is wrong with one is not reported: forged, stale, foreign, used, too long or no ASCII at all, it is no ticket. Used
serials are remembered while they could be valid, up to a bound. Beyond it no ticket is taken at all until there is
room again. It fails closed: a request without a ticket loses its age, and one with two of them would jump the
queue twice. Replicas that share a key each remember what was used with them.
"""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections import deque
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

HEADER = b"x-millgate-ticket"
ASKED = b"1"
"""The header's value with which a client says that it will bring tickets back."""
VALID_S = 120.0
"""Twice the longest hint (60 s), so that no client that returns on time comes too late."""
SHORTEST_KEY, LONGEST_KEY = 32, 64
"""Bytes of a key: half of BLAKE2b's strength at least, all of it at most."""
MOST_USED = 200_000
"""Used tickets that are remembered: twice the waiting clients that the core knows, some 30 MB."""

# Serial; issued, in milliseconds since 1970; how old the request was then, and the hint, in milliseconds.
_FIELDS = Struct(">QQII")
_TAG_BYTES = 12
_LENGTH = (_FIELDS.size + _TAG_BYTES) * 4 // 3
# Other uses of the same key, and other forms of a ticket, have other tags.
_PURPOSE = b"millgate-ticket1"
_MOST_MS = 2**32 - 1
_SERIALS = 2**64
# Clocks of a fleet that NTP keeps differ by less.
_MOST_AHEAD_S = 1.0


class Ticket(NamedTuple):
    """What a good ticket says, in wall seconds: when the request was first seen, when it was asked back, and its hint."""

    first_seen: float
    due_at: float
    hint_s: float


class Tickets:
    """Issues tickets and takes them back, each once; wall seconds are handed in.

    `key` is made at every start, or shared by a fleet. `first_serial` is any random number below 2**64, drawn at
    every start, so that no two processes with one key number their tickets alike. ValueError for a key that is too
    short or too long; the key is not told.
    """

    def __init__(self, key: bytes, first_serial: int, most_used: int = MOST_USED) -> None:
        if not SHORTEST_KEY <= len(key) <= LONGEST_KEY:
            raise ValueError(
                f"a ticket key has {SHORTEST_KEY} to {LONGEST_KEY} bytes, this one has {len(key)}"
            )
        self._key = key
        self._serial = first_serial
        self._most_used = most_used
        self._used: set[int] = set()
        self._order: deque[tuple[float, int]] = deque()

    def issue(self, tenant: str, first_seen: float, due_at: float, now: float) -> bytes:
        """Return the header value that proves when this tenant's request was first seen; 48 bytes of ASCII."""
        self._serial = (self._serial + 1) % _SERIALS
        fields = _FIELDS.pack(
            self._serial, max(0, round(now * 1000.0)), _ms(now - first_seen), _ms(due_at - now)
        )
        return urlsafe_b64encode(fields + self._tag(fields, tenant))

    def redeem(self, value: bytes, tenant: str, now: float) -> Ticket | None:
        """Return what this header value proves, and use it up; None for whatever is no good ticket of this tenant."""
        if len(value) != _LENGTH or value.find(b"+") >= 0 or value.find(b"/") >= 0:
            return None  # the decoder would take these two for - and _
        try:
            ticket = urlsafe_b64decode(value)
        except NotBase64:
            return None
        fields, tag = ticket[: _FIELDS.size], ticket[_FIELDS.size :]
        if not hmac.compare_digest(tag, self._tag(fields, tenant)):
            return None
        serial, issued_ms, age_ms, hint_ms = _FIELDS.unpack(fields)
        issued = issued_ms / 1000.0
        if not -_MOST_AHEAD_S <= now - issued < VALID_S or not self._use(serial, issued + VALID_S, now):
            return None
        hint_s = hint_ms / 1000.0
        return Ticket(issued - age_ms / 1000.0, issued + hint_s, hint_s)

    def _use(self, serial: int, until: float, now: float) -> bool:
        """Note that this ticket is used; False if it was, or if there is no room to remember it."""
        order, used = self._order, self._used
        # Where the clock was set back, notes that lie ahead would fill the room until it is there again.
        while order and order[-1][0] > now + VALID_S + _MOST_AHEAD_S:
            used.discard(order.pop()[1])
        while order and order[0][0] <= now:
            used.discard(order.popleft()[1])
        if serial in used or len(used) >= self._most_used:
            return False
        used.add(serial)
        # Notes are dropped in their order, so none may end before the one that was made before it.
        order.append((max(until, order[-1][0]) if order else until, serial))
        return True

    def _tag(self, fields: bytes, tenant: str) -> bytes:
        return blake2b(
            fields + tenant.encode(), digest_size=_TAG_BYTES, key=self._key, person=_PURPOSE
        ).digest()


def _ms(seconds: float) -> int:
    return min(max(0, round(seconds * 1000.0)), _MOST_MS)

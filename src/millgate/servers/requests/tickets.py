"""Tickets at the HTTP door: core time on one side, wall time and headers on the other."""

import os
from collections.abc import Callable
from time import time
from typing import Final

from millgate.core.decisions import Yield
from millgate.dialects.ticket import ASKED, HEADER, Ticket, Tickets

_KEY_BYTES: Final = 32
_SERIAL_BYTES: Final = 8


class TicketDesk:
    """Issues and redeems tickets in core time; `now` reads the core's clock, `wall` the one that replicas have in common.

    Without a `key` it makes one, so that tickets are good until this process ends, and no step of the wall clock touches them.
    ValueError for a key of a wrong length, which is not told.
    """

    def __init__(
        self, now: Callable[[], float], key: bytes | None = None, wall: Callable[[], float] = time
    ) -> None:
        ahead = wall() - now()
        self._now, self._wall = now, wall if key else lambda: now() + ahead
        serial = int.from_bytes(os.urandom(_SERIAL_BYTES))
        self._tickets = Tickets(key or os.urandom(_KEY_BYTES), serial)

    def redeem(self, value: bytes, tenant: str) -> Ticket | None:
        """Return what this header value proves, in core time; None for what is no good ticket, such as `1`."""
        if value == ASKED:
            return None
        wall = self._wall()
        ticket = self._tickets.redeem(value, tenant, wall)
        if ticket is None:
            return None
        ahead = wall - self._now()
        return Ticket(ticket.first_seen - ahead, ticket.due_at - ahead, ticket.hint_s)

    def line(self, tenant: str, refused: Yield) -> bytes:
        """Return the header line with which this refusal's client proves its age when it is back."""
        wall, now = self._wall(), self._now()
        due_at = wall + refused.retry_after_s
        value = self._tickets.issue(tenant, wall - (now - refused.first_seen), due_at, wall)
        return b"%b: %b\r\n" % (HEADER, value)

"""Clients that another worker of this gate has told to come back, known by a keyed hash of their bodies where they bring no ticket.

SDKs keep a connection that is idle for 4 to 5 s (undici and httpx by default). After a longer hint they connect anew, and the kernel hands them
to any worker. There they would be newcomers: their records are with the worker that told them, in its core.
"""

from collections import OrderedDict
from collections.abc import Callable
from time import time
from typing import Final, NamedTuple

from millgate.core.decisions import Yield
from millgate.core.settings import LONGEST_HINT_S
from millgate.core.tickets.appointment import Appointment
from millgate.dialects.ticket import Ticket

MOST_TOLD: Final = 50_000
"""About 15 MB. Beyond it the one that was told longest ago is forgotten, and is a newcomer."""
# The longest hint and how late its client may be (`Appointment.late_s`).
_KEPT_S: Final = 1.1 * LONGEST_HINT_S


class ToldClient(NamedTuple):
    """The `mark` of a request, when it was first seen, when its client was told, in wall seconds, and to come after how long."""

    mark: int
    first_seen: float
    told_at: float
    hint_s: float


class ToldClients:
    """Those of the other workers; `tell` hears of each that this one tells. `now` reads the core's clock, `wall` the one that all workers have in common.

    Of equal bodies one client is known. It is one when it is on time by its hint, and once; a client that is early is a newcomer.
    """

    def __init__(
        self, tell: Callable[[ToldClient], None], now: Callable[[], float], wall: Callable[[], float] = time
    ) -> None:
        self._tell, self._now, self._wall = tell, now, wall
        self._told: OrderedDict[int, ToldClient] = OrderedDict()

    def __len__(self) -> int:
        return len(self._told)

    def refused(self, mark: int, refusal: Yield) -> None:
        """Tell the others of a client of this worker that is told to come back."""
        wall, now = self._wall(), self._now()
        self._tell(ToldClient(mark, wall - (now - refusal.first_seen), wall, refusal.retry_after_s))

    def learn(self, client: ToldClient) -> None:
        """Remember a client of another worker, and forget those whose time is over."""
        told, over = self._told, self._wall() - _KEPT_S
        told.pop(client.mark, None)
        while told and (len(told) >= MOST_TOLD or next(iter(told.values())).told_at < over):
            told.popitem(last=False)
        told[client.mark] = client

    def back(self, mark: int) -> Ticket | None:
        """Return what a client with this mark was told, in core time, and forget it; None where it is not its time, or none was told."""
        client = self._told.get(mark)
        wall = self._wall()
        if client is None or not Appointment(client.told_at, client.hint_s).is_honoured(wall):
            return None
        del self._told[mark]
        ahead = wall - self._now()
        return Ticket(client.first_seen - ahead, client.told_at + client.hint_s - ahead, client.hint_s)

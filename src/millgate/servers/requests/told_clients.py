"""Clients that another worker, or a replica, has told to come back, known by a keyed hash of their bodies where they bring no ticket.

SDKs keep a connection that is idle for 4 to 5 s (undici and httpx by default). After a longer hint they connect anew, and the kernel hands them
to any worker, or a balancer to any replica. There they would be newcomers: their records are with the one that told them, in its core.
"""

from collections import OrderedDict
from collections.abc import Callable
from heapq import heappop, heappush
from time import time
from typing import Final, NamedTuple

import msgspec

from millgate.core.decisions import Yield
from millgate.core.tickets.appointment import Appointment
from millgate.core.words import Reason
from millgate.servers.requests.tickets import KeptBody

MOST_TOLD: Final = 50_000
"""About 15 MB. Beyond it the one that was told longest ago is forgotten, and is a newcomer."""
# A client that is told again has the age that it had, as far as clocks keep time since.
_SAME_S: Final = 0.001
# Clients that are told one of these are promised no place: another worker would count that as a broken promise.
_UNPROMISED: Final = (Reason.NO_ENGINE, Reason.NO_LEASE, Reason.DRAINING)


class ToldClient(NamedTuple):
    """The `mark` of a request, when it was first seen, when its client was told, in wall seconds, to come after how long, and whether to a place."""

    mark: int
    first_seen: float
    told_at: float
    hint_s: float
    is_promised: bool = True


encode_told: Final = msgspec.msgpack.encode
read_told: Final = msgspec.msgpack.Decoder(list[ToldClient]).decode
"""Clients in MessagePack, as workers and replicas tell each other of them; msgspec.MsgspecError for what is none."""


class ToldClients:
    """Those of the other workers and replicas; `tell` hears of each that this one tells.

    `key` is that of their marks, and all of them have it. `now` reads the core's clock, `wall` the one that they have in common.

    Of equal bodies, as all of a load test's are, each client is known, and the one that is due first comes first. It is one
    when it is on time by its hint, and once; a client that is early is a newcomer.
    """

    def __init__(
        self,
        key: bytes,
        tell: Callable[[ToldClient], None],
        now: Callable[[], float],
        wall: Callable[[], float] = time,
    ) -> None:
        self._key, self._tells, self._now, self._wall = key, [tell], now, wall
        # Heaps by when clients are due; the mark that was learned last stands last.
        self._told: OrderedDict[int, list[tuple[float, ToldClient]]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def tell_too(self, tell: Callable[[ToldClient], None]) -> None:
        """Let this hear as well of each client that this worker tells."""
        self._tells.append(tell)

    def refused(self, tenant: str, body: KeptBody, refusal: Yield) -> None:
        """Tell the others of a client of this worker that is told to come back."""
        wall, now, mark = self._wall(), self._now(), body.mark(self._key, tenant)
        first_seen, is_promised = wall - (now - refusal.first_seen), refusal.reason not in _UNPROMISED
        told = ToldClient(mark, first_seen, wall, refusal.retry_after_s, is_promised)
        for tell in self._tells:
            tell(told)

    def learn(self, client: ToldClient) -> None:
        """Remember a client of another worker, and forget those whose time is over."""
        told, wall, equal = self._told, self._wall(), self._told.get(client.mark)
        if equal and len(equal) == 1 and abs(equal[0][1].first_seen - client.first_seen) < _SAME_S:
            self._pop(client.mark)
        while told:
            first = next(iter(told))
            if self._count < MOST_TOLD and wall <= _appointment(told[first][0][1]).lapses_at:
                break
            self._pop(first)
        heappush(told.setdefault(client.mark, []), (client.told_at + client.hint_s, client))
        told.move_to_end(client.mark)
        self._count += 1

    def back(self, tenant: str, body: KeptBody, retry_count: int | None = None) -> ToldClient | None:
        """Return what a client with this body was told, its times the core's, and forget it; None where it is not its time, or none was told.

        A first attempt, by its label, is none of several with this body (`ReturnRecord.matches`).
        """
        mark, wall = body.mark(self._key, tenant), self._wall()
        while (equal := self._told.get(mark)) is not None:
            client = equal[0][1]
            appointment = _appointment(client)
            if not appointment.is_due(wall) or (retry_count == 0 and len(equal) > 1):
                break
            self._pop(mark)
            if wall <= appointment.lapses_at:
                ahead = wall - self._now()
                return client._replace(first_seen=client.first_seen - ahead, told_at=client.told_at - ahead)
        return None

    def _pop(self, mark: int) -> None:
        """Forget the client of this mark that is due first."""
        equal = self._told[mark]
        heappop(equal)
        self._count -= 1
        if not equal:
            del self._told[mark]


def _appointment(client: ToldClient) -> Appointment:
    return Appointment(client.told_at, client.hint_s)

"""The doors for clients on their addresses: sockets of this process alone, or those that several processes share."""

import os
import socket
from dataclasses import dataclass, field
from typing import Final

from millgate.gateway.settings import GatewaySettings
from millgate.http1.server import HttpServer
from millgate.servers.line import LineDoor

ATTEMPTS_PER_WORKER: Final = 1_000_000_000
"""Numbers of attempts apart from one worker to the next: the first figures of a number tell its worker."""


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """One of the processes that serve the same addresses: `number` counts them from 1, also those that have ended.

    `http` and `line` are descriptors of the doors' sockets, one for each slot; `line` is empty without a line door. A worker
    accepts on those of its `slot`. `secret` is one for all, and another at each start of the gate.
    """

    slot: int
    number: int
    http: tuple[int, ...]
    line: tuple[int, ...]
    secret: bytes = field(repr=False)

    @property
    def first_attempt(self) -> int:
        """The number of its first attempt, which no other worker's attempt has."""
        return self.number * ATTEMPTS_PER_WORKER + 1


class Doors:
    """Opens the doors of one process, and accepts for a neighbour that has died; `place` None is a process alone."""

    def __init__(self, server: HttpServer, line: LineDoor | None, place: WorkerPlace | None) -> None:
        self._server = server
        self._line = line
        self._place = place
        self.is_shared = place is not None
        self._covered: dict[int, list[tuple[HttpServer | LineDoor, socket.socket]]] = {}
        self.port = 0
        self.line_port = 0

    async def open(self, settings: GatewaySettings) -> None:
        """Accept clients; raises OSError when an address is taken or not ours. Behind Envoy the HTTP door stays closed."""
        if self._place is not None:
            await self.cover(self._place.slot, settings)
            return
        if settings.extproc is None:
            self.port = await self._server.listen(settings.host, settings.port, settings.ssl)
        if self._line is not None and (address := settings.line) is not None:
            self.line_port = await self._line.listen(address.host, address.port, ssl=address.ssl)

    async def cover(self, slot: int, settings: GatewaySettings) -> None:
        """Accept on the sockets of this slot, beside those that are accepted on."""
        assert self._place is not None, "a process alone has no slots"
        if slot in self._covered:
            return
        http = _own(self._place.http[slot])
        covered = self._covered[slot] = [(self._server, http)]
        self.port = await self._server.accept_on(http, settings.ssl)
        if self._line is not None and settings.line is not None:
            line = _own(self._place.line[slot])
            covered.append((self._line, line))
            self.line_port = await self._line.accept_on(line, settings.line.ssl)

    def uncover(self, slot: int) -> None:
        """Accept on the sockets of this slot no more."""
        for door, sock in self._covered.pop(slot, ()):
            door.listeners.stop(sock)

    def retire(self) -> None:
        """Accept no more clients and make every answer the last of its connection; what has connected is served."""
        self._server.retiring = True
        for slot in tuple(self._covered):
            self.uncover(slot)


def _own(descriptor: int) -> socket.socket:
    """Return a socket of its own for a descriptor, which stays open: it may be wanted again."""
    return socket.socket(fileno=os.dup(descriptor))

"""The listening side: accepts, sweeps deadlines, drains, closes."""

import asyncio
import socket
import ssl as tls
from collections.abc import Callable
from typing import Final, cast

from millgate.http1.server.budget import ByteBudget
from millgate.http1.server.connection import Connection, OpenConnections
from millgate.http1.server.contract import Application, RequestHead, ServerLimits
from millgate.sockets.descriptors import Descriptors
from millgate.sockets.listening import Listeners, listening_socket

_ACCEPTS_PER_TURN: Final = 8
"""With a thousand streams a turn of the loop takes milliseconds. At one a turn, a thousand new users a second would wait
in the kernel for a tenth of one. libuv has not accepted in a loop since 1.45."""


class HttpServer(OpenConnections):
    """Serves one application on one or more addresses; build it on the loop that runs it.

    `retiring` makes every answer the last of its connection; `draining` refuses bodies that are announced, too. The
    budget and the descriptors may be shared with other servers. Where there are too many connections a newcomer is
    refused, or if the server `makes_room` takes the place of the oldest that waits for a request. Bodies are booked on
    the tenant that `tenant_of` finds in their head, and on their peer.
    """

    def __init__(
        self,
        application: Application,
        *,
        limits: ServerLimits | None = None,
        budget: ByteBudget | None = None,
        tenant_of: Callable[[RequestHead], str] | None = None,
        descriptors: Descriptors | None = None,
        makes_room: bool = False,
    ) -> None:
        budget, descriptors = budget or ByteBudget(), descriptors or Descriptors()
        super().__init__(
            application, limits or ServerLimits(), budget, tenant_of, descriptors, makes_room=makes_room
        )
        self.listeners = Listeners(
            lambda: cast("asyncio.Protocol", Connection(self)),
            self,
            handshake_s=self.limits.head_s,
            backlog=self.limits.backlog,
            accepts_per_turn=_ACCEPTS_PER_TURN,
        )

    # ---- the owner's side

    async def listen(self, host: str, port: int, ssl: tls.SSLContext | None = None) -> int:
        """Accept connections on this address, over TLS with `ssl`, and return its port; OSError if it is taken."""
        return await self.accept_on(await listening_socket(host, port, self.limits.backlog), ssl)

    async def accept_on(self, sock: socket.socket, ssl: tls.SSLContext | None = None) -> int:
        """Accept connections on a bound socket, which is the server's from now on, and return its port.

        TCP_NOTSENT_LOWAT is set on the listener and inherited by every connection: a client that stops reading
        holds kilobytes of the kernel's memory instead of megabytes.
        """
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, self.limits.unsent_bytes)
        port = await self.listeners.accept(sock, ssl)
        self.heads.refresh()
        self.sweep.start()
        return port

    def adopt(self, limits: ServerLimits, byte_budget: int) -> None:
        """Take new limits: for connections that come from now on, the bounds over all of them at once."""
        self.limits = limits
        self.listeners.handshake_s = limits.head_s
        self._clients.most = limits.connections
        self._clients.account.measure()
        self.budget.limit_bytes = byte_budget

    def drain(self) -> None:
        """Make every answer the last of its connection and close the idle ones; still accept until told."""
        self.draining = self.retiring = True
        for connection in tuple(self._connections):
            connection.close_idle()

    async def close(self) -> None:
        """Stop listening, cut every connection, and return when all are closed; clients count as gone."""
        self.listeners.close()
        for connection in tuple(self._connections):
            connection.abort()
        await self.listeners.wait_closed()
        if self._connections:
            self._emptied = self._loop.create_future()
            await self._emptied
        self.sweep.stop()

    @property
    def connections(self) -> int:
        """How many client connections are open, lingering ones included."""
        return len(self._connections)

    # ---- the handshakes' side

    def meet(self) -> asyncio.Protocol | None:
        """Count a client that begins a TLS handshake; None closes its connection at once."""
        if self.crowded:
            self.refused_connections += 1
            return None
        connection = cast("asyncio.Protocol", Connection(self))
        self._clients.enter(connection)
        return connection

    def met(self, protocol: object) -> None:
        """Count a client no more whose handshake has failed."""
        if protocol not in self._connections:
            self._clients.leave(protocol)

"""The listening side: accepts, sweeps deadlines, drains, closes."""

import asyncio
import socket
import ssl as tls
from collections.abc import Callable
from typing import Any, Final, cast

from millgate.http1.client.sweep import Sweep
from millgate.http1.server.budget import ByteBudget, Share
from millgate.http1.server.connection import Connection, ConnectionOwner
from millgate.http1.server.contract import Application, RefusedRequest, RequestHead, ServerLimits
from millgate.http1.server.framing import UnacceptableError
from millgate.http1.server.intake import EarlyRefusalError
from millgate.http1.server.wire import ResponseHeads
from millgate.http1.wire.outbox import Outbox
from millgate.sockets.descriptors import Descriptors, DoorClients
from millgate.sockets.listening import Listeners, listening_socket

_ACCEPTS_PER_TURN: Final = 8
"""With a thousand streams a turn of the loop takes milliseconds. At one a turn, a thousand new users a second would wait
in the kernel for a tenth of one. libuv has not accepted in a loop since 1.45."""


class HttpServer(ConnectionOwner):
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
        self.application = application
        self.limits = limits or ServerLimits()
        self.budget = budget or ByteBudget()
        self._clients = DoorClients(descriptors or Descriptors(), self.limits.connections)
        self._tenant_of = tenant_of
        self._makes_room = makes_room
        self.heads = ResponseHeads()
        self.sweep = Sweep(self._check, self._forgive)
        self.draining = self.retiring = False
        self.refused_connections = 0
        self._loop = asyncio.get_running_loop()
        self.outbox = Outbox(self._loop.call_soon)
        self._connections: dict[Connection, None] = {}
        self.listeners = Listeners(
            lambda: cast("asyncio.Protocol", Connection(self)),
            self,
            handshake_s=self.limits.head_s,
            backlog=self.limits.backlog,
            accepts_per_turn=_ACCEPTS_PER_TURN,
        )
        self._full_answer = b""
        self._emptied: asyncio.Future[None] | None = None

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

    # ---- the connections' side

    def soon(self, callback: Callable[..., Any]) -> object:
        """Call back in the next iteration of the loop."""
        return self._loop.call_soon(callback)

    def share_of(self, head: RequestHead) -> Share:
        """Return where the body behind this head is booked."""
        tenant = "" if self._tenant_of is None else self._tenant_of(head)
        return self.budget.share(tenant, head.peer)

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

    def admit(self, connection: Connection) -> bool:
        """Take a new connection in; return whether it is within the cap."""
        self._clients.enter(connection)
        if self._makes_room and self._clients.overdrawn:
            self._cut_oldest()
        self._connections[connection] = None
        if self._clients.overdrawn:
            self.refused_connections += 1
            return False
        return True

    def _cut_oldest(self) -> None:
        """Cut the oldest connection whose client is waited for, if there is one."""
        oldest = next((each for each in self._connections if not each.is_busy), None)
        if oldest is not None:
            self._clients.leave(oldest)
            oldest.abort()

    def full_answer(self) -> bytes:
        """Return the prebuilt 503 for connections over the cap."""
        if not self._full_answer:
            refusal = self.application.bad_request(503, "overloaded", "too many connections; try again soon")
            self._full_answer = (
                self.heads.sized(refusal.status, refusal.headers, len(refusal.body), True) + refusal.body
            )
        return self._full_answer

    @property
    def crowded(self) -> bool:
        """Whether even lingering refusals are too many."""
        return self._clients.crowded

    def forget(self, connection: Connection) -> None:
        """Drop a connection that is closed."""
        self._connections.pop(connection, None)
        self._clients.leave(connection)
        if self._emptied is not None and not self._connections and not self._emptied.done():
            self._emptied.set_result(None)

    def refusal(self, error: Exception, head: RequestHead | None = None) -> RefusedRequest:
        """Dress what has gone wrong with a request; report what is the application's own fault."""
        if isinstance(error, EarlyRefusalError):
            return error.refusal
        if not isinstance(error, UnacceptableError):
            self._loop.call_exception_handler(
                {"message": "the application failed on a request", "exception": error}
            )
            error = UnacceptableError(500, "internal_error", "the server failed on this request")
        return self.application.bad_request(error.status, error.code, error.message, head)

    # ---- deadlines

    def _check(self, now: float) -> None:
        self.heads.refresh()
        self._full_answer = b""  # it carries the date
        late = [connection for connection in self._connections if connection.deadlines.until <= now]
        for connection in late:
            try:
                connection.on_deadline(now)
            except Exception:
                connection.abort()  # it would be late again at every look, and those behind it never looked at
                raise

    def _forgive(self, lost_s: float) -> None:
        for connection in self._connections:
            connection.deadlines.forgive(lost_s)

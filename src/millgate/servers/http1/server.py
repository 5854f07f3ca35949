"""The listening side: accepts, sweeps deadlines, drains, closes."""

import asyncio
import socket
import ssl as tls
from collections.abc import Callable
from typing import Any, Final, cast

from millgate.runtime.descriptors import Descriptors, DoorClients
from millgate.runtime.tls_acceptor import TlsAcceptor
from millgate.runtime.upstream.outbox import Outbox
from millgate.runtime.upstream.sweep import Sweep
from millgate.servers.http1.budget import ByteBudget, Share
from millgate.servers.http1.connection import Connection
from millgate.servers.http1.contract import Application, RefusedRequest, RequestHead
from millgate.servers.http1.framing import UnacceptableError
from millgate.servers.http1.intake import EarlyRefusalError
from millgate.servers.http1.limits import ServerLimits
from millgate.servers.http1.responses import ResponseHeads

_ACCEPTS_PER_TURN: Final = 8
"""With a thousand streams a turn of the loop takes milliseconds: at one a turn, a thousand new users a second would wait
in the kernel for a tenth of one. libuv has not accepted in a loop since 1.45."""


class HttpServer:
    """Serves one application on one or more addresses; build it on the loop that runs it.

    `draining` makes every answer the last of its connection. The budget and the descriptors may be shared with other
    servers.
    Bodies are booked on the tenant that `tenant_of` finds in their head, and on their peer.
    """

    def __init__(
        self,
        application: Application,
        *,
        limits: ServerLimits | None = None,
        budget: ByteBudget | None = None,
        tenant_of: Callable[[RequestHead], str] | None = None,
        descriptors: Descriptors | None = None,
    ) -> None:
        self.application = application
        self.limits = limits or ServerLimits()
        self.budget = budget or ByteBudget()
        self._clients = DoorClients(descriptors or Descriptors(), self.limits.connections)
        self._tenant_of = tenant_of
        self.heads = ResponseHeads()
        self.sweep = Sweep(self._check, self._forgive)
        self.draining = False
        self.refused_connections = 0
        self._loop = asyncio.get_running_loop()
        self.outbox = Outbox(self._loop.call_soon)
        self._connections: set[Connection] = set()
        self._listeners: list[tuple[socket.socket, list[asyncio.Server] | TlsAcceptor]] = []
        self._full_answer = b""
        self._emptied: asyncio.Future[None] | None = None

    # ---- the owner's side

    async def listen(self, host: str, port: int, ssl: tls.SSLContext | None = None) -> int:
        """Accept connections on this address, over TLS with `ssl`, and return its port; OSError if it is taken.

        TCP_NOTSENT_LOWAT is set on the listener and inherited by every connection: a client that stops reading
        holds kilobytes of the kernel's memory instead of megabytes.
        """
        family, *_rest, address = (
            await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        )[0]
        sock = socket.create_server(address[:2], family=family, backlog=self.limits.backlog)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, self.limits.unsent_bytes)
        bound_port: int = sock.getsockname()[1]
        self._listeners.append((sock, await self._accept(sock, ssl)))
        self.heads.refresh()
        self.sweep.start()
        return bound_port

    async def _accept(
        self, sock: socket.socket, ssl: tls.SSLContext | None
    ) -> list[asyncio.Server] | TlsAcceptor:
        """Accept on several descriptors of one socket: libuv takes one connection from each in a turn of its loop."""
        if ssl is not None:
            return TlsAcceptor(sock.dup(), ssl, self, handshake_s=self.limits.head_s)
        listeners = []
        for _ in range(_ACCEPTS_PER_TURN):
            listener = await self._loop.create_server(
                lambda: cast("asyncio.Protocol", Connection(self)),
                sock=sock.dup(),
                backlog=self.limits.backlog,
            )
            listeners.append(listener)
        return listeners

    async def secure(self, ssl: tls.SSLContext | None) -> None:
        """Serve new connections with this context, or without TLS; those that are open stay as they are.

        The socket goes on listening while its listeners are replaced: no connection is refused.
        """
        for place, (sock, listeners) in enumerate(self._listeners):
            if isinstance(listeners, TlsAcceptor) and ssl is not None:
                listeners.context = ssl
                continue
            self._listeners[place] = sock, await self._accept(sock, ssl)
            _close(listeners)

    def adopt(self, limits: ServerLimits, byte_budget: int) -> None:
        """Take new limits: for connections that come from now on, the bounds over all of them at once."""
        self.limits = limits
        self._clients.most = limits.connections
        self._clients.account.measure()
        self.budget.limit_bytes = byte_budget

    def drain(self) -> None:
        """Make every answer the last of its connection and close the idle ones; still accept until told."""
        self.draining = True
        for connection in tuple(self._connections):
            connection.close_idle()

    def stop_listening(self) -> None:
        """Accept no more connections; those that are open go on."""
        for sock, listeners in self._listeners:
            sock.close()
            _close(listeners)

    async def close(self) -> None:
        """Stop listening, cut every connection, and return when all are closed; clients count as gone."""
        self.stop_listening()
        for connection in tuple(self._connections):
            connection.abort()
        for _sock, listeners in self._listeners:
            for listener in [listeners] if isinstance(listeners, TlsAcceptor) else listeners:
                await listener.wait_closed()
        self._listeners.clear()
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
        self._connections.add(connection)
        if self._clients.overdrawn:
            self.refused_connections += 1
            return False
        return True

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
        self._connections.discard(connection)
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


def _close(listeners: list[asyncio.Server] | TlsAcceptor) -> None:
    for listener in [listeners] if isinstance(listeners, TlsAcceptor) else listeners:
        listener.close()

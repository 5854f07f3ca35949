"""One engine's address: kept connections, new ones, and the sweep over their deadlines."""

import asyncio
import ssl as tls
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, cast

from millgate.core.words import FailureKind, Sent
from millgate.http1.client.connecting import Connecting, Proxy, connect_through
from millgate.http1.client.connection import ConnectionShelf, UpstreamCall, UpstreamConnection
from millgate.http1.client.contract import AnswerHead, Ear, Receiver, UpstreamSettings
from millgate.http1.client.sweep import Sweep
from millgate.http1.wire.fields import REQUEST_RESERVED, HeaderWriter, Lines
from millgate.http1.wire.outbox import Outbox
from millgate.sockets.addresses import HostAddresses, Resolve, resolve

_WRITER: Final = HeaderWriter(REQUEST_RESERVED)
_WITH_BODY: Final = (b"POST", b"PUT", b"PATCH")
_LONG_BYTES: Final = 1024 * 1024
"""A body beyond this follows its head in a write of its own: to join them would copy 32 MB in 20 ms."""
_DEFAULT_PORTS: Final = {False: 80, True: 443}


def _soon(callback: Callable[..., Any]) -> object:
    return asyncio.get_running_loop().call_soon(callback)


class UpstreamPool(ConnectionShelf):
    """Implements `Upstream` for `host:port`; build it anywhere, use it on one running loop.

    Kept connections are taken last in, first out, so that a quiet pool shrinks. Names are resolved while
    connecting, never on the way of a request that finds a kept connection. With `ssl` the engine is spoken to
    over TLS and its certificate must be for `server_name`, by default `host`. With `proxy` it is reached through that.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        settings: UpstreamSettings | None = None,
        ssl: tls.SSLContext | None = None,
        server_name: str | None = None,
        look_up: Resolve = resolve,
        proxy: Proxy | None = None,
    ) -> None:
        self.settings = settings or UpstreamSettings()
        self._host = host
        self._port = port
        self._ssl = ssl
        self._server_name = server_name
        bare = (f"[{host}]" if ":" in host else host).encode("ascii" if host.isascii() else "idna")
        target = b"%b:%d" % (bare, port)
        # Without the field any coding would be right (RFC 9110 section 12.5.3), and what is compressed cannot be judged.
        self._head_tail = b" HTTP/1.1\r\nhost: %b\r\naccept-encoding: identity\r\n" % (
            bare if port == _DEFAULT_PORTS[ssl is not None] else target
        )
        nearest = (host, port) if proxy is None else (proxy.host, proxy.port)
        self._addresses = HostAddresses(*nearest, look_up)
        self._connect: Callable[..., Coroutine[Any, Any, None]] = self._addresses.connect
        if proxy is not None:
            self._connect = partial(connect_through, proxy, self._addresses, target)
        self._target = b""  # the last one that was sent, which need not be checked again
        self._kept: list[UpstreamConnection] = []
        self._connections: set[UpstreamConnection] = set()
        self._connecting: dict[UpstreamCall, tuple[Connecting, UpstreamConnection]] = {}
        self.outbox = Outbox(_soon)
        self.sweep = Sweep(self._check, self._forgive)
        self.ear: Ear | None = None
        """The listener to the engine's health; set it before the first request."""
        self.on_head: Callable[[AnswerHead], None] | None = None
        """Told the head of every answer, before its receiver: what it says holds for the next request already."""
        self._closed = False

    @property
    def kept(self) -> int:
        """How many connections wait for a request."""
        return len(self._kept)

    @property
    def open(self) -> int:
        """How many connections there are, kept, busy and being made."""
        return len(self._connections) + len(self._connecting)

    # ---- the caller's side

    def request(
        self,
        method: bytes,
        target: bytes,
        headers: Sequence[tuple[bytes, bytes]] | Lines,
        body: bytes,
        receiver: Receiver,
        *,
        may_retry: bool = True,
    ) -> UpstreamCall:
        """Send one request now, on a kept connection if there is one; see `Upstream.request`."""
        if self._closed:
            raise RuntimeError("this upstream has been closed")
        is_long = len(body) > _LONG_BYTES
        message = self._message(method, target, headers, body, is_long=is_long)
        call = UpstreamCall(self, message, receiver, head_only=method == b"HEAD", may_retry=may_retry)
        if is_long:
            call.rest = body
        if self._kept:
            call.begin(self._kept.pop())
        else:
            self.connect(call)
        return call

    def adopt(self, settings: UpstreamSettings, ssl: tls.SSLContext | None, server_name: str | None) -> None:
        """Take new settings and a new context; calls under way go on, and no connection of the old context serves another."""
        assert (ssl is None) is (self._ssl is None), "the address would not be the same"
        self.settings = settings
        self._server_name = server_name
        if ssl is not None:
            self._ssl = ssl
            while self._kept:
                self._kept.pop().drop()

    def close(self) -> None:
        """Close every connection and abort every call; none of their receivers is called again."""
        self._closed = True
        self.sweep.stop()
        for call in list(self._connecting):
            call.abort()
        for connection in list(self._connections):
            if connection.call is not None:
                connection.call.abort()
            else:
                connection.drop()
        self._kept.clear()

    def _message(
        self,
        method: bytes,
        target: bytes,
        headers: Sequence[tuple[bytes, bytes]] | Lines,
        body: bytes,
        *,
        is_long: bool,
    ) -> bytes:
        """Return what is sent first: head and body, or the head alone before a long body."""
        if target != self._target:
            if not target or any(byte <= 0x20 or byte == 0x7F for byte in target):
                raise ValueError("a request target with a space or a control character in it cannot be sent")
            self._target = target
        lines = headers if isinstance(headers, bytes) else _WRITER.write(headers)
        if body or method in _WITH_BODY:
            return b"%b %b%b%bcontent-length: %d\r\n\r\n%b" % (
                method,
                target,
                self._head_tail,
                lines,
                len(body),
                b"" if is_long else body,
            )
        return b"%b %b%b%b\r\n" % (method, target, self._head_tail, lines)

    # ---- the connections' side

    def connect(self, call: UpstreamCall) -> None:
        """Make a fresh connection for this call."""
        self.sweep.start()
        loop = asyncio.get_running_loop()
        connection = UpstreamConnection(self, call, self._ssl)
        making = self._connect(
            lambda: cast("asyncio.Protocol", connection),
            ssl=self._ssl,
            server_hostname=(self._server_name or self._host) if self._ssl is not None else None,
        )
        # The sweep ends it in time: a timer of its own would cost as much again.
        connecting = Connecting(call, loop.time() + self.settings.connect_s, making, self._fail)
        self._connecting[call] = connecting, connection
        connecting.start()

    def opened(self, connection: UpstreamConnection, call: UpstreamCall) -> None:
        """Send the call whose connection is there."""
        self._connecting.pop(call, None)
        self._connections.add(connection)
        if call.paused:  # the transport begins to read when this returns
            asyncio.get_running_loop().call_soon(self._begin_paused, connection, call)
        else:
            call.begin(connection)

    def _begin_paused(self, connection: UpstreamConnection, call: UpstreamCall) -> None:
        if call.is_over:  # its client has left in this very turn
            connection.drop()
        elif connection.lost:
            self._fail_to_connect(call, "the connection was closed at once")
        else:
            call.begin(connection)

    def _fail(self, connecting: Connecting, reason: str) -> None:
        if self._connecting.pop(connecting.call, None) is not None:
            self._fail_to_connect(connecting.call, reason)

    def _fail_to_connect(self, call: UpstreamCall, reason: str) -> None:
        """End it for its time, as never sent, or as broken where a connection that is lost by now had taken it."""
        kind = FailureKind.CONNECT if call.sent is Sent.NONE else FailureKind.BROKEN
        kind = FailureKind.TIMEOUT if self.sweep.now >= call.deadline else kind
        call.fail(kind, f"cannot connect to {self._host}:{self._port}: {reason}")

    def abandon(self, call: UpstreamCall) -> None:
        """Stop connecting for a call that has ended."""
        found = self._connecting.pop(call, None)
        if found is not None:
            connecting, connection = found
            connection.unwanted()
            connecting.stop()

    def report(self, error: Exception) -> None:
        """Report what a receiver has raised, once."""
        context = {"message": "the receiver of an engine's answer failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)

    def keep(self, connection: UpstreamConnection) -> None:
        """Put an idle connection on the shelf; close it when the shelf is full, and one of other certificates, or to where the host was."""
        now = self.sweep.now
        is_there = connection.checked_at == now or self._addresses.has(connection.peer, now)
        connection.checked_at = now
        if is_there and connection.ssl is self._ssl and len(self._kept) < self.settings.kept_connections:
            connection.stamp = now
            self._kept.append(connection)
        else:
            connection.drop()

    def lost(self, connection: UpstreamConnection) -> None:
        """Forget a connection that is closed."""
        self._connections.discard(connection)
        if connection in self._kept:
            self._kept.remove(connection)

    # ---- deadlines

    def _check(self, now: float) -> None:
        self._check_connecting(now)
        patience_s, idle_s, ear = self._patience_s, self.settings.chunk_idle_s, self.ear
        unreachable = ear is not None and ear.unreachable
        for connection in tuple(self._connections):
            call = connection.call
            if call is None:
                continue
            if now >= call.deadline:
                connection.expire(call, "the answer did not come before its deadline")
            elif now - connection.stamp >= patience_s and connection.headed and not call.paused:
                connection.expire(call, f"silent for {patience_s:g} s in the middle of an answer")
            elif unreachable and not connection.headed and now - connection.stamp >= idle_s:
                connection.expire(call, f"silent for {idle_s:g} s, and nothing answers there any more")
        while self._kept and now - self._kept[0].stamp >= self.settings.kept_idle_s:
            self._kept.pop(0).drop()
        if not self._connections and not self._connecting:
            self.sweep.stop()

    def _forgive(self, lost_s: float) -> None:
        """Do not count time as an engine's silence in which this process did not listen."""
        for connection in self._connections:
            connection.stamp += lost_s
        for connecting, _connection in self._connecting.values():
            connecting.by += lost_s

    def _check_connecting(self, now: float) -> None:
        for call, (connecting, connection) in tuple(self._connecting.items()):
            if now >= min(call.deadline, connecting.by):
                connection.unwanted()  # it may be made in this very turn, and uvloop then closes it without a word
                connecting.expire()

    @property
    def _patience_s(self) -> float:
        """How long a started answer may be silent now."""
        settings, ear = self.settings, self.ear
        deserted = ear is not None and ear.deserted
        return min(settings.chunk_idle_s, settings.deserted_idle_s) if deserted else settings.chunk_idle_s

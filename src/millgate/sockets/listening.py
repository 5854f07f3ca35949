"""Listening sockets of a door: bound here or handed in, and accepted on with TLS or without it.

Several processes can serve one address. Then each has a socket of its own there (SO_REUSEPORT, socket(7)), and the kernel
spreads new connections over them by their addresses. The process that binds the sockets keeps them open. What has connected to a
socket whose process ends waits in it, and is accepted by the process that gets the socket next.
"""

import asyncio
import contextlib
import socket
import ssl as tls
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final, Protocol

_ACCEPTS_PER_TURN: Final = 8
_PAUSE_S: Final = 1.0
"""How long accepting pauses when the process or the system has no descriptor left, as in asyncio."""


class TlsDoor(Protocol):
    """What an acceptor asks of its door."""

    def meet(self) -> asyncio.Protocol | None:
        """Count a client and return the protocol to serve it, or None to close its connection at once."""

    def met(self, protocol: object) -> None:
        """Hear that a handshake is over; the protocol may or may not have been given its connection."""


class TlsAcceptor:
    """Accepts on a listening socket, which it owns, until `close`; `context` may be exchanged at any time.

    Each client is counted from its accept: an unfinished handshake holds a descriptor too. The loop's own server tells a
    protocol nothing of a handshake that fails, so what it has counted it could never uncount.
    """

    def __init__(
        self, sock: socket.socket, context: tls.SSLContext, door: TlsDoor, *, handshake_s: float
    ) -> None:
        self.context = context
        self._sock = sock
        self._door = door
        self._handshake_s = handshake_s
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._closed = False
        self._listen()

    def close(self) -> None:
        """Accept no more, and cut clients that have not finished their handshake."""
        if self._closed:
            return
        self._closed = True
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._sock)
        self._sock.close()
        for handshake in self._handshakes:
            handshake.cancel()

    async def wait_closed(self) -> None:
        """Return when no handshake is left."""
        await asyncio.gather(*self._handshakes, return_exceptions=True)

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                client, _address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._loop.remove_reader(self._sock)
                self._pause = self._loop.call_later(_PAUSE_S, self._listen)
                return
            self._greet(client)

    def _greet(self, client: socket.socket) -> None:
        protocol = self._door.meet()
        if protocol is None:
            client.close()
            return
        client.setblocking(False)
        handshake = self._loop.create_task(self._shake_hands(client, protocol))
        self._handshakes.add(handshake)
        handshake.add_done_callback(lambda done: self._done(done, protocol))

    async def _shake_hands(self, client: socket.socket, protocol: asyncio.Protocol) -> None:
        # The client has left, speaks no TLS, or has no certificate that we know: only its connection closes.
        with contextlib.suppress(OSError):
            await self._loop.connect_accepted_socket(
                lambda: protocol, client, ssl=self.context, ssl_handshake_timeout=self._handshake_s
            )

    def _done(self, handshake: asyncio.Task[None], protocol: asyncio.Protocol) -> None:
        self._handshakes.discard(handshake)
        self._door.met(protocol)


Acceptors = list[asyncio.Server] | TlsAcceptor
UNHEARD_S: Final = 60.0
"""The other side's machine acknowledges what it gets within milliseconds, however busy or stopped its program is."""
_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""tcp(7); the second one is macOS's name of the first."""


async def listening_socket(host: str, port: int, backlog: int) -> socket.socket:
    """Return a socket that listens on this address, 0 for any free port; OSError if it is taken or not ours."""
    family, *_rest, address = (
        await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    )[0]
    return socket.create_server(address[:2], family=family, backlog=backlog)


def shared_sockets(host: str, port: int, count: int, backlog: int = 1024) -> list[socket.socket]:
    """Return so many sockets that listen on one address, 0 for any free port; OSError if it is taken or not ours.

    One is opened alone at first: another gate that shares this address among its own processes would let us in.
    """
    family, *_rest, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.create_server(address[:2], family=family) as alone:
        port = alone.getsockname()[1]
    sockets = []
    try:
        for _ in range(count):
            sockets.append(sock := socket.socket(family, socket.SOCK_STREAM))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address[0], port))
            sock.listen(backlog)
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def notice_silence(sock: socket.socket, unheard_s: float = UNHEARD_S) -> None:
    """Have the kernel end a connection, within a minute, whose other side is gone without a word, as a host without power is.

    Balancers that forget what is idle (AWS after 350 s, Azure after 4 minutes) see signs of life while an answer is
    awaited. What is sent must be acknowledged within `unheard_s`, not within a quarter of an hour.
    """
    # A system that lacks one of these notices later; macOS sets nothing where the other side has gone already.
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in {**_KEEP_ALIVE, "TCP_USER_TIMEOUT": int(1000 * unheard_s)}.items():
            if (option := getattr(socket, name, None)) is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


def is_ip(name: str) -> bool:
    """Return whether this host is an address, and not a name."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


class Listeners:
    """Accepts a door's clients on any number of sockets; build it on the loop that runs it.

    `make` returns the protocol of a new connection, `door` counts those that begin a TLS handshake. libuv takes one
    connection from a descriptor in a turn of its loop, so that a socket is accepted on by `accepts_per_turn` of them.
    """

    def __init__(
        self,
        make: Callable[[], asyncio.Protocol],
        door: TlsDoor,
        *,
        handshake_s: float,
        backlog: int,
        accepts_per_turn: int = 1,
    ) -> None:
        self.handshake_s = handshake_s
        self._make = make
        self._door = door
        self._backlog = backlog
        self._accepts_per_turn = accepts_per_turn
        self._sockets: list[tuple[socket.socket, Acceptors]] = []

    async def accept(self, sock: socket.socket, ssl: tls.SSLContext | None) -> int:
        """Listen and accept on a bound socket, which is ours from now on, over TLS with `ssl`; return its port."""
        sock.setblocking(False)
        notice_silence(sock)  # what is accepted inherits it
        sock.listen(self._backlog)
        port: int = sock.getsockname()[1]
        self._sockets.append((sock, await self._accept(sock, ssl)))
        return port

    async def secure(self, ssl: tls.SSLContext | None) -> None:
        """Accept with this context, or without TLS; the sockets go on listening meanwhile: no connection is refused."""
        for place, (sock, acceptors) in enumerate(self._sockets):
            if isinstance(acceptors, TlsAcceptor) and ssl is not None:
                acceptors.context = ssl
                continue
            self._sockets[place] = sock, await self._accept(sock, ssl)
            _close(acceptors)

    def stop(self, sock: socket.socket) -> None:
        """Accept no more on this socket, and close it; another process that has it goes on."""
        for entry in self._sockets:
            if entry[0] is sock:
                self._sockets.remove(entry)
                sock.close()
                _close(entry[1])
                return

    def close(self) -> None:
        """Accept no more."""
        for sock, acceptors in self._sockets:
            sock.close()
            _close(acceptors)

    async def wait_closed(self) -> None:
        """Return when what was closed is closed."""
        sockets, self._sockets = self._sockets, []
        for _sock, acceptors in sockets:
            for acceptor in [acceptors] if isinstance(acceptors, TlsAcceptor) else acceptors:
                await acceptor.wait_closed()

    async def _accept(self, sock: socket.socket, ssl: tls.SSLContext | None) -> Acceptors:
        if ssl is not None:
            return TlsAcceptor(sock.dup(), ssl, self._door, handshake_s=self.handshake_s)
        loop = asyncio.get_running_loop()
        return [
            await loop.create_server(self._make, sock=sock.dup(), backlog=self._backlog)
            for _ in range(self._accepts_per_turn)
        ]


def _close(acceptors: Acceptors) -> None:
    for acceptor in [acceptors] if isinstance(acceptors, TlsAcceptor) else acceptors:
        acceptor.close()

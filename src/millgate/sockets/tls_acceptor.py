"""Accepts TLS clients so that each is counted from its accept: an unfinished handshake holds a descriptor too.

The loop's own server tells a protocol nothing of a handshake that fails, so what it has counted it could never uncount.
"""

import asyncio
import contextlib
import socket
import ssl as tls
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
    """Accepts on a listening socket, which it owns, until `close`; `context` may be exchanged at any time."""

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

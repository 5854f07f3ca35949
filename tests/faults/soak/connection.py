"""One client connection of the soak: a raw socket in an event loop, so that it can leave, stall and dawdle in any way."""

import asyncio
import contextlib
import socket
import struct
from typing import NamedTuple

from lab.upstream.answers import DONE

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_READ_BYTES = 64 * 1024
_LAST_CHUNK = b"0\r\n\r\n"
_FINISHED = b'"finish_reason":"stop"'
_TOOK_TOO_LONG = b"HTTP/1.1 408"
_END_BYTES = 2048
"""Of a stream are kept: the event with its finish reason, the usage and `[DONE]`."""


class Seen(NamedTuple):
    """What a client saw of one answer: its status, the gate's reason if it refused, and whether it came whole."""

    status: int
    reason: str
    whole: bool
    retry_after_s: float
    kept: bool


NOTHING = Seen(0, "", whole=False, retry_after_s=0.0, kept=False)


class Connection:
    """A connection to the gate; `dawdle_s` is a pause after each read, of at most `read_bytes`."""

    def __init__(self, *, receive_bytes: int | None = None, read_bytes: int = _READ_BYTES) -> None:
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._read_bytes = read_bytes
        self.dawdle_s = 0.0
        self._got = bytearray()
        self._loop = asyncio.get_running_loop()

    async def connect(self, port: int) -> None:
        """Connect to the gate."""
        await self._loop.sock_connect(self._socket, ("127.0.0.1", port))

    async def send(self, data: bytes) -> None:
        """Send everything; a gate that has closed by then is no fault."""
        with contextlib.suppress(ConnectionError):
            await self._loop.sock_sendall(self._socket, data)

    async def more(self) -> bool:
        """Read once; return whether anything came before the end."""
        try:
            data = await self._loop.sock_recv(self._socket, self._read_bytes)
        except ConnectionError:
            return False
        self._got += data
        if self.dawdle_s:
            await asyncio.sleep(self.dawdle_s)
        return bool(data)

    async def answer(self) -> Seen:
        """Read one answer to its end, or to that of the connection."""
        while (end := self._got.find(b"\r\n\r\n")) < 0:
            if not await self.more():
                return NOTHING
        fields = _fields(bytes(self._got[:end]))
        status = int(self._got[9:12])
        del self._got[: end + 4]
        whole = await self._body(fields)
        reason = fields.get("x-millgate-reason", "")
        kept = whole and fields.get("connection") != "close"
        return Seen(status, reason, whole, float(fields.get("retry-after", 0.0)), kept)

    async def _body(self, fields: dict[str, str]) -> bool:
        if "content-length" in fields:
            return await self._sized(int(fields["content-length"]))
        while not self._got.endswith(_LAST_CHUNK):
            if not await self.more():
                return False
            if len(self._got) > _READ_BYTES:
                del self._got[:-_END_BYTES]
        # A framed end behind a finish reason is an end: the network may have damaged the `[DONE]` between them.
        done = DONE in self._got or _FINISHED in self._got
        self._got.clear()
        return done

    async def _sized(self, size: int) -> bool:
        while len(self._got) < size:
            if not await self.more():
                return False
        del self._got[:size]
        return True

    def is_given_up(self) -> bool:
        """Return whether the gate has ended it without an answer, or said that a request took too long; nothing is read."""
        begin = bytes(self._got[: len(_TOOK_TOO_LONG)])
        if not begin:
            try:
                begin = self._socket.recv(len(_TOOK_TOO_LONG), socket.MSG_PEEK)
            except BlockingIOError:
                return False
            except ConnectionError:
                return True
        return begin in (b"", _TOOK_TOO_LONG)

    def half_close(self) -> None:
        """Send FIN and go on reading."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Leave; with FIN when everything that came has been read."""
        self._socket.close()

    def reset(self) -> None:
        """Leave with RST."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._socket.close()


def _fields(head: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:])
    return {name.lower(): value.strip() for name, _, value in lines}

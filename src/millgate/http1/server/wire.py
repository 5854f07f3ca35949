"""The sending side of one connection: whatever ends it first sends what this turn of the loop has kept."""

import asyncio
import http
import socket
import struct
import sys
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any, Final

from millgate.http1.server.contract import Headers, RefusedRequest, ServerLimits
from millgate.http1.wire.fields import ANSWER_RESERVED, Lines, header_lines
from millgate.http1.wire.outbox import Addressee, Outbox
from millgate.sockets.listening import UNHEARD_S, notice_silence

_PHRASES: Final = {status.value: status.phrase for status in http.HTTPStatus}

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
CLOSE: Final = b"connection: close\r\n"
_BESIDE: Final = {426: b"upgrade: HTTP/1.1\r\nconnection: upgrade\r\n"}
"""Lines that a status asks for: 426 names the protocol that is required (RFC 9110 section 15.5.22)."""
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_TOLD_BYTES: Final = 128
_ACKNOWLEDGED: Final = 120
"""Where `tcpi_bytes_acked` begins in the first 128 bytes of Linux's `tcp_info` (since 4.1)."""
_TCP_INFO: Final[int] = getattr(socket, "TCP_INFO", 0)


def _lines(headers: Headers | Lines) -> Lines:
    return headers if isinstance(headers, bytes) else header_lines(headers, ANSWER_RESERVED)


class ResponseHeads:
    """Builds heads; `refresh` moves the date, the sweep calls it. Status lines are made once a second, not once an answer."""

    def __init__(self) -> None:
        self._openings: dict[int, bytes] = {}
        self._second = 0

    def refresh(self) -> None:
        """Forget last second's status lines."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._openings.clear()

    def opening(self, status: int) -> bytes:
        """Return the status line and the Date header."""
        opening = self._openings.get(status)
        if opening is None:
            if not 200 <= status <= 599:
                raise ValueError(f"status is {status}, a final answer has 200 to 599")
            phrase = _PHRASES.get(status, "")
            date = formatdate(self._second, usegmt=True)
            line = f"HTTP/1.1 {status} {phrase}\r\ndate: {date}\r\n"
            opening = line.encode("ascii") + _BESIDE.get(status, b"")
            self._openings[status] = opening
        return opening

    def sized(self, status: int, headers: Headers | Lines, length: int, close: bool) -> bytes:
        """Return the whole head of an answer of `length` body bytes."""
        opening = self._openings.get(status) or self.opening(status)
        lines = headers if isinstance(headers, bytes) else header_lines(headers, ANSWER_RESERVED)
        ending = b"connection: close\r\n\r\n" if close else b"\r\n"
        return b"%b%bcontent-length: %d\r\n%b" % (opening, lines, length, ending)

    def last(self, refusal: RefusedRequest) -> bytes:
        """Return a whole refusal, the last answer of its connection."""
        head = self.sized(refusal.status, refusal.headers, len(refusal.body), True)
        return head + refusal.body

    def bodiless(self, status: int, headers: Headers | Lines, *, close: bool) -> bytes:
        """Return the whole of an answer that has no body by its status (204, 304)."""
        return b"%b%b%b\r\n" % (self.opening(status), _lines(headers), CLOSE if close else b"")

    def chunked(self, status: int, headers: Headers | Lines, *, close: bool) -> bytes:
        """Return the whole head of an answer in chunks."""
        return b"%b%btransfer-encoding: chunked\r\n%b\r\n" % (
            self.opening(status),
            _lines(headers),
            CLOSE if close else b"",
        )

    def until_close(self, status: int, headers: Headers | Lines) -> bytes:
        """Return the head of an answer to HTTP/1.0 that the close of the connection ends."""
        return b"%b%b%b\r\n" % (self.opening(status), _lines(headers), CLOSE)


class Wire(Addressee):
    """Writes to a transport from the time that it is there until it is lost; nowhere before and after."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._transport: asyncio.Transport | None = None
        self._deaf = False

    def attach(self, transport: asyncio.Transport, limits: ServerLimits) -> str:
        """Bound what the transport buffers for a slow client, and return the client's address."""
        self._transport = transport
        transport.set_write_buffer_limits(limits.write_high_bytes, limits.write_low_bytes)
        if (
            limits.write_stall_s > UNHEARD_S
        ):  # to the kernel a client that reads nothing for long is gone, too
            notice_silence(transport.get_extra_info("socket"), limits.write_stall_s)
        peername: tuple[str, ...] = transport.get_extra_info("peername") or ("",)
        return peername[0]

    def detach(self) -> None:
        """Forget a transport that is lost."""
        self._transport = None

    @property
    def taken_bytes(self) -> int:
        """How many bytes the client's machine has taken: what the transport keeps unsent says nothing of that over TLS."""
        if self._transport is None:
            return 0
        sock, told = self._transport.get_extra_info("socket"), b""
        try:
            if sock is not None and _TCP_INFO:
                told = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _TOLD_BYTES)
        except OSError:  # it is closed, and that has yet to be told
            return 0
        # Where the system does not say (macOS, gVisor): with less unsent the number is larger, and that is progress.
        return int.from_bytes(told[_ACKNOWLEDGED:], sys.byteorder) or -self._transport.get_write_buffer_size()

    @property
    def attached(self) -> bool:
        """Whether there is a transport."""
        return self._transport is not None

    def send(self, data: bytes) -> None:
        """Write with everything else that this turn of the loop writes."""
        self._outbox.put(self, data)

    def deliver(self, data: bytes) -> None:
        """Write now."""
        if self._transport is not None:
            self._transport.write(data)

    def flush(self) -> None:
        """Write what waits."""
        self._outbox.send()

    def deafen(self) -> None:
        """Leave in the kernel what the client still sends."""
        self._deaf = True
        if self._transport is not None:
            self._transport.pause_reading()

    def rest(self, soon: Callable[[Callable[..., Any]], object]) -> None:
        """Read no more in this turn of the loop: libuv reads up to 32 times in one, 8 MB."""
        if self._transport is not None:
            self._transport.pause_reading()
            soon(self._listen)

    def _listen(self) -> None:
        if self._transport is not None and not self._deaf and not self._transport.is_closing():
            self._transport.resume_reading()

    def half_close(self) -> None:
        """Say that nothing more will be sent, where that can be said: TLS has no half-close."""
        self.flush()
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    def close(self) -> None:
        """Close when all that is written has left."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """Close so that the client sees a reset, which no reader takes for the end of an answer."""
        self.flush()
        if self._transport is not None:
            option = self._transport.get_extra_info("socket").setsockopt
            option(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._transport.abort()

    def abort(self) -> None:
        """Cut at once."""
        if self._transport is not None:
            self._transport.abort()

"""The sending side of one connection: whatever ends it first sends what this turn of the loop has kept."""

import asyncio
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any, Final

from millgate.http1.server.limits import ServerLimits
from millgate.http1.wire.outbox import Addressee, Outbox
from millgate.sockets.listening import UNHEARD_S, notice_silence

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_TOLD_BYTES: Final = 128
_ACKNOWLEDGED: Final = 120
"""Where `tcpi_bytes_acked` begins in the first 128 bytes of Linux's `tcp_info` (since 4.1)."""
_TCP_INFO: Final[int] = getattr(socket, "TCP_INFO", 0)


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

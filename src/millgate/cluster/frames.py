"""Frames over a local connection: four bytes of length, most significant first, then so many bytes.

Both sides are processes of one gate. The bounds are there for the one that has gone wrong: a length that no message has, and
a peer that does not read.
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

MOST_FRAME_BYTES: Final = 16 * 1024 * 1024
"""A report of a gate with all its lanes, engines and tenants has 0.3 MB; a frame of decisions less."""
_LENGTH_BYTES: Final = 4
_MOST_UNREAD_BYTES: Final = 4 * MOST_FRAME_BYTES
"""What a peer may leave unread; beyond it the connection is cut."""


class FrameConnection(asyncio.Protocol):
    """Calls `on_frame` with every whole frame, and `on_end` once when the connection has closed."""

    def __init__(
        self,
        on_frame: Callable[[bytes], None],
        on_end: Callable[[], None],
        most_bytes: int = MOST_FRAME_BYTES,
    ) -> None:
        self._on_frame = on_frame
        self.on_end = on_end
        self._most_bytes = most_bytes
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    @property
    def is_open(self) -> bool:
        """Whether frames can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, frame: bytes) -> None:
        """Send one frame, or nothing where the connection has ended; a peer that leaves too much unread is cut."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(len(frame).to_bytes(_LENGTH_BYTES) + frame)
        if transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
            transport.abort()

    def close(self) -> None:
        """End the connection after what was sent."""
        if self._transport is not None:
            self._transport.close()

    # ---- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class, not a subclass

    def data_received(self, data: bytes) -> None:
        """Take the frames that are whole; a length beyond the bound ends the connection."""
        received = self._received
        received += data
        while len(received) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(received[:_LENGTH_BYTES])
            if end > _LENGTH_BYTES + self._most_bytes:
                assert self._transport is not None
                self._transport.abort()
                return
            if len(received) < end:
                return
            frame = bytes(received[_LENGTH_BYTES:end])
            del received[:end]
            self._on_frame(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the owner."""
        del exc
        self.on_end()

"""Frames of HTTP/2 (RFC 9113): their kinds and bounds, how they leave, and how many may carry nothing."""

import asyncio
import struct
from collections import OrderedDict
from typing import Final, Protocol

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED, PRIORITIZED, ACK = 1, 4, 8, 0x20, 1
NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED = 0, 1, 2, 3, 5
FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, CALM = 6, 7, 8, 9, 11

FRAME_BYTES: Final = 16_384
"""The longest frame, ours and theirs: what every peer takes."""
STREAM_WINDOW: Final = 1 << 20
CONNECTION_WINDOW: Final = 1 << 24
"""What may be on its way to us, for one stream and for all."""
MOST_UNSENT_BYTES: Final = 1 << 26
"""What a peer that reads nothing may leave with us before its connection is cut."""
MOST_BLOCK_BYTES: Final = 64 * 1024
IDLE_FRAMES: Final = 1_000
"""Frames that carry no message which a peer may send at once; data earns it twenty more, and each second sixty."""
FIRST_WINDOW: Final = 65_535
MOST_WINDOW: Final = (1 << 31) - 1
SETTING = struct.Struct(">HI")
_HEAD = struct.Struct(">IBI")
MAX_STREAMS, INITIAL_WINDOW, MAX_FRAME = 3, 4, 5


class Http2Error(Exception):
    """The peer breaks the rules: the connection ends with this code."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class WaitingStream(Protocol):
    """A stream with bytes that did not fit a window; `window` is its own beyond the first one, which all streams have."""

    number: int
    window: int
    unsent: int
    """How many bytes `FrameWriter` knows to wait."""

    def flush(self) -> None:
        """Send what the windows let through."""


class IdleFrames:
    """Counts frames that carry no message (pings, settings, streams that are opened and reset): too many are an attack."""

    def __init__(self) -> None:
        self._left = float(IDLE_FRAMES)
        self._calm_at = asyncio.get_running_loop().time()

    def earn(self) -> None:
        """Data has come: some frames belong to it."""
        self._left = min(float(IDLE_FRAMES), self._left + 20.0)

    def count(self, weight: float = 1.0) -> None:
        """Take note of such a frame; Http2Error when there were too many."""
        self._left -= weight
        if self._left < 0:
            now = asyncio.get_running_loop().time()
            self._left = min(float(IDLE_FRAMES), 60.0 * (now - self._calm_at))
            self._calm_at = now
            if self._left < IDLE_FRAMES / 10:
                raise Http2Error(CALM, "too many frames that carry nothing")


class FrameWriter:
    """What leaves one connection: frames of one turn together, and data as far as the peer's windows let it.

    While it `gathers`, its owner will call `write`.
    """

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.gathers = False
        self._out: list[bytes] = []
        self._window = self.first_window = FIRST_WINDOW
        self._blocked: OrderedDict[int, WaitingStream] = OrderedDict()
        """They wait for the connection's window, the longest first; those in `_starved` wait for their own."""
        self._starved: dict[int, WaitingStream] = {}
        self._unsent = 0

    def put(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """Send a frame; those of one turn leave together."""
        self._out.append(_HEAD.pack(len(payload) << 8 | kind, flags, number))
        self._out.append(payload)
        if not self.gathers:
            self.gathers = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self.gathers = False
        self.write()

    def write(self) -> None:
        """Let go of what was put."""
        transport = self.transport
        if self._out and transport is not None and not transport.is_closing():
            transport.write(b"".join(self._out))
            if transport.get_write_buffer_size() > MOST_UNSENT_BYTES:
                transport.abort()
        self._out.clear()

    def room(self, window: int) -> int:
        """Return how many bytes may go, for a stream with this window beyond the first one."""
        return min(self._window, self.first_window + window)

    def spend(self, size: int) -> int:
        """Take bytes from the connection's window, and return how many."""
        self._window -= size
        return size

    def widen(self, more: int) -> None:
        """The peer takes so many bytes more."""
        self._window += more
        if self._window > MOST_WINDOW:
            raise Http2Error(FLOW_CONTROL_ERROR, "a window too large")
        while self._blocked and self._window > 0:
            self._blocked.popitem(last=False)[1].flush()

    def resize(self, window: int) -> int:
        """Give every stream this first window, and return how many try again: those that waited for more, if it is more."""
        more, self.first_window = window > self.first_window, window
        starved = list(self._starved.values()) if more else []
        for stream in starved:
            stream.flush()
        return len(starved)

    def holds(self, stream: WaitingStream, size: int) -> None:
        """Remember a stream that waits for a window with so many bytes; a peer that reads nothing is cut off."""
        number = stream.number
        if self.first_window + stream.window > 0:
            self._starved.pop(number, None)
            self._blocked[number] = stream
        else:
            self._blocked.pop(number, None)
            self._starved[number] = stream
        self._unsent += size - stream.unsent
        stream.unsent = size
        if self._unsent > MOST_UNSENT_BYTES and self.transport is not None:
            self.transport.abort()

    def drop(self, stream: WaitingStream) -> None:
        """Forget a stream that is over, or waits no more."""
        if stream.unsent:
            self._unsent -= stream.unsent
            stream.unsent = 0
            self._blocked.pop(stream.number, None)
            self._starved.pop(stream.number, None)


def unpadded(flags: int, payload: bytes) -> bytes:
    """Return a payload without its padding; Http2Error where there is more of it than there is."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise Http2Error(PROTOCOL_ERROR, "more padding than there is")
    return payload[1 : len(payload) - payload[0]]


def check_size(payload: bytes, size: int) -> None:
    """Http2Error for a payload of another size."""
    if len(payload) != size:
        raise Http2Error(FRAME_SIZE_ERROR, "a frame of a wrong size")

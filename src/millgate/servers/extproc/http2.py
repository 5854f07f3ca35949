"""HTTP/2 (RFC 9113) as gRPC needs it, server side, in clear text: one protocol object for each connection.

A library of gRPC costs more CPU for a request than all that is decided about it (docs/how-to/envoy.md has the figures). Everything
that a connection may make us keep has a bound: streams, header blocks, unread and unsent bytes, and frames that carry nothing.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Final, Protocol, cast

from millgate.servers.extproc import frames
from millgate.servers.extproc.frames import FrameWriter, Http2Error, IdleFrames, check_size, unpadded
from millgate.servers.extproc.hpack import Field, HpackDecoder, HpackError, literal

_RESPONSE: Final = b"\x88" + literal(b"content-type", b"application/grpc")


class StreamOwner(Protocol):
    """What a stream's frames are for."""

    def on_data(self, data: bytes) -> None:
        """Bytes of the peer."""

    def on_end(self) -> None:
        """The peer says nothing more; it may still listen."""

    def on_closed(self) -> None:
        """The stream is gone: reset, or its connection is."""


class Http2Stream:
    """One stream: `send` and `finish` answer on it; what does not fit the peer's windows waits."""

    def __init__(self, connection: "Http2Connection", number: int) -> None:
        self._connection = connection
        self.number = number
        self.window = self.unsent = 0
        self.owner: StreamOwner | None = None
        self.started = False
        self.ended = False
        """Whether the peer has ended its side."""
        self.is_open = True
        self.read_bytes = 0
        self._waiting = bytearray()
        self.trailers: bytes | None = None

    @property
    def peer(self) -> str:
        """The address at the other end."""
        return self._connection.peer

    def send(self, data: bytes) -> None:
        """Send bytes after those before them."""
        if not self.is_open or self.trailers is not None:
            return
        if not self.started:
            self.started = True
            self._connection.out.put(frames.HEADERS, frames.END_HEADERS, self.number, _RESPONSE)
        if not self._waiting and len(data) <= min(frames.FRAME_BYTES, self._connection.out.room(self.window)):
            self.window -= self._connection.out.spend(len(data))
            self._connection.out.put(frames.DATA, 0, self.number, data)
        else:
            self._waiting += data
            self.flush()

    def finish(self, trailers: bytes) -> None:
        """End our side with this header block, when all is sent."""
        if self.is_open and self.trailers is None:
            self.trailers = trailers
            self.flush()

    def flush(self) -> None:
        """Send what the windows let through."""
        connection, waiting = self._connection, self._waiting
        while waiting and (room := min(frames.FRAME_BYTES, connection.out.room(self.window))) > 0:
            piece = bytes(waiting[:room])
            del waiting[:room]
            self.window -= connection.out.spend(len(piece))
            connection.out.put(frames.DATA, 0, self.number, piece)
        if waiting:
            connection.out.holds(self, len(waiting))
            return
        connection.out.drop(self)
        if self.trailers is not None and self.is_open:
            self._end(self.trailers)

    def _end(self, trailers: bytes) -> None:
        connection = self._connection
        block = trailers if self.started else _RESPONSE + trailers
        connection.out.put(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, self.number, block)
        if not self.ended:  # whatever else comes is of no use: RFC 9113 section 8.1
            connection.out.put(frames.RST_STREAM, 0, self.number, struct.pack(">I", frames.NO_ERROR))
        connection.forget(self)

    def reset(self, code: int) -> None:
        """End both sides at once."""
        if self.is_open:
            self._connection.out.put(frames.RST_STREAM, 0, self.number, struct.pack(">I", code))
            self._connection.forget(self)


Opener = Callable[[Http2Stream, list[Field]], StreamOwner | None]
"""Takes a new stream and its header block; None where it has been answered already."""


# Transports call protocols by their methods; a compiled class that inherits from an interpreted one loses its fixed fields.
class _UnpausedProtocol:
    """What a transport tells a protocol that never stops writing."""

    def eof_received(self) -> None:
        """Do nothing: the transport closes, and `connection_lost` follows."""

    def pause_writing(self) -> None:
        """Do nothing: `FrameWriter` bounds what a peer may leave unread."""

    def resume_writing(self) -> None:
        """Do nothing, as with `pause_writing`."""


class Http2Connection(_UnpausedProtocol):
    """Reads frames and hands them to streams, as an `asyncio.Protocol`; `opener` gives each its owner."""

    def __init__(self, opener: Opener, known: set["Http2Connection"], most_streams: int) -> None:
        self._opener = opener
        self._known = known
        self._most_streams = most_streams
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._greeted = False
        self._decoder = HpackDecoder()
        self._streams: dict[int, Http2Stream] = {}
        self._last_stream = 0
        self._block: tuple[int, int, bytearray] | None = None
        self._read_bytes = 0
        self._idle = IdleFrames()
        self.out = FrameWriter()
        self.peer = ""
        self._takers: dict[int, Callable[[int, int, bytes], None]] = {
            frames.DATA: self._take_data,
            frames.HEADERS: self._take_headers,
            frames.RST_STREAM: self._take_reset,
            frames.SETTINGS: self._take_settings,
            frames.PING: self._take_ping,
            frames.WINDOW_UPDATE: self._take_window,
            frames.CONTINUATION: self._take_continuation,
        }

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        self._transport = cast("asyncio.Transport", transport)
        self.out.transport = self._transport
        address = transport.get_extra_info("peername")
        self.peer = str(address[0]) if isinstance(address, tuple) else ""
        self._known.add(self)
        ours = ((frames.MAX_STREAMS, self._most_streams), (frames.INITIAL_WINDOW, frames.STREAM_WINDOW))
        self.out.put(frames.SETTINGS, 0, 0, b"".join(frames.SETTING.pack(*each) for each in ours))
        self.out.put(
            frames.WINDOW_UPDATE, 0, 0, struct.pack(">I", frames.CONNECTION_WINDOW - frames.FIRST_WINDOW)
        )

    def connection_lost(self, _error: Exception | None) -> None:
        """Tell every stream."""
        self._known.discard(self)
        for stream in list(self._streams.values()):
            stream.is_open = False
            if stream.owner is not None:
                stream.owner.on_closed()

    def data_received(self, data: bytes) -> None:
        """Read whole frames; a peer that breaks the rules is told how, and cut off."""
        self._buffer += data
        self.out.gathers = True
        try:
            if self._greeted or self._greet():
                self._read_frames()
        except Http2Error as error:
            self._end(error.code, str(error))
        except HpackError as unreadable:
            self._end(frames.COMPRESSION_ERROR, str(unreadable))
        finally:
            self.out.gathers = False
            self.out.write()

    def _greet(self) -> bool:
        if not frames.PREFACE.startswith(self._buffer[: len(frames.PREFACE)]):
            raise Http2Error(frames.PROTOCOL_ERROR, "no HTTP/2")
        if len(self._buffer) < len(frames.PREFACE):
            return False
        del self._buffer[: len(frames.PREFACE)]
        self._greeted = True
        return True

    def _read_frames(self) -> None:
        data, at = bytes(self._buffer), 0
        self._buffer.clear()
        while len(data) - at >= 9:
            length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            if length > frames.FRAME_BYTES:
                raise Http2Error(frames.FRAME_SIZE_ERROR, "a frame too long")
            end = at + 9 + length
            if end > len(data):
                break
            kind, flags = data[at + 3], data[at + 4]
            number = int.from_bytes(data[at + 5 : at + 9]) & 0x7FFFFFFF
            if self._block is not None and (kind != frames.CONTINUATION or number != self._block[0]):
                raise Http2Error(frames.PROTOCOL_ERROR, "a header block must not be interrupted")
            if kind == frames.PUSH:
                raise Http2Error(frames.PROTOCOL_ERROR, "a client pushes nothing")
            self._takers.get(kind, self._take_nothing)(flags, number, data[at + 9 : end])
            at = end
        self._buffer += data[at:]

    # ---- frames

    def _take_headers(self, flags: int, number: int, payload: bytes) -> None:
        payload = unpadded(flags, payload)
        if flags & frames.PRIORITIZED:
            payload = payload[5:]
        if flags & frames.END_HEADERS:
            self._open(number, self._decoder.read(payload), ends=bool(flags & frames.END_STREAM))
        else:
            self._block = number, flags, bytearray(payload)

    def _take_continuation(self, flags: int, number: int, payload: bytes) -> None:
        if self._block is None:
            raise Http2Error(frames.PROTOCOL_ERROR, "a continuation of nothing")
        self._idle.count()
        _, first_flags, block = self._block
        block += payload
        if len(block) > frames.MOST_BLOCK_BYTES:
            raise Http2Error(frames.CALM, "a header block too long")
        if flags & frames.END_HEADERS:
            self._block = None
            self._open(number, self._decoder.read(bytes(block)), ends=bool(first_flags & frames.END_STREAM))

    def _open(self, number: int, fields: list[Field], *, ends: bool) -> None:
        """Begin a stream, or end one whose trailers these are."""
        stream = self._streams.get(number)
        if stream is not None:
            if not ends:
                raise Http2Error(frames.PROTOCOL_ERROR, "trailers must end their stream")
            self._end_side(stream)
            return
        if not number & 1:
            raise Http2Error(frames.PROTOCOL_ERROR, "a stream with a wrong number")
        if number <= self._last_stream:
            return  # trailers of a stream that we have ended
        self._last_stream = number
        stream = Http2Stream(self, number)
        if len(self._streams) >= self._most_streams:
            stream.reset(frames.REFUSED_STREAM)
            return
        self._idle.count()
        self._streams[number] = stream
        stream.owner = self._opener(stream, fields)
        if ends:
            self._end_side(stream)

    def _take_data(self, flags: int, number: int, payload: bytes) -> None:
        stream = self._streams.get(number)
        if stream is None and (number > self._last_stream or not number & 1):
            raise Http2Error(frames.PROTOCOL_ERROR, "data of no stream")
        self._read_bytes += len(payload)
        if self._read_bytes > frames.CONNECTION_WINDOW // 2:
            self.out.put(frames.WINDOW_UPDATE, 0, 0, struct.pack(">I", self._read_bytes))
            self._read_bytes = 0
        if stream is None:
            return  # of one that has been ended here
        if stream.ended:
            raise Http2Error(frames.STREAM_CLOSED, "data after the end")
        if payload:
            self._idle.earn()
        elif not flags & frames.END_STREAM:
            self._idle.count()
        stream.read_bytes += len(payload)
        if stream.read_bytes > frames.STREAM_WINDOW // 2 and not flags & frames.END_STREAM:
            self.out.put(frames.WINDOW_UPDATE, 0, number, struct.pack(">I", stream.read_bytes))
            stream.read_bytes = 0
        if stream.owner is not None:
            stream.owner.on_data(unpadded(flags, payload))
        if flags & frames.END_STREAM:
            self._end_side(stream)

    def _end_side(self, stream: Http2Stream) -> None:
        stream.ended = True
        if stream.owner is not None and stream.is_open:
            stream.owner.on_end()

    def _take_reset(self, _flags: int, number: int, payload: bytes) -> None:
        check_size(payload, 4)
        self._idle.count()
        stream = self._streams.pop(number, None)
        if stream is None:
            if number > self._last_stream or not number:
                raise Http2Error(frames.PROTOCOL_ERROR, "a reset of no stream")
            return
        self.forget(stream)
        if stream.owner is not None:
            stream.owner.on_closed()

    def _take_settings(self, flags: int, number: int, payload: bytes) -> None:
        self._idle.count()
        if number or len(payload) % 6:
            raise Http2Error(frames.FRAME_SIZE_ERROR, "settings of a wrong size or place")
        if flags & frames.ACK:
            return
        window = self.out.first_window
        for name, value in frames.SETTING.iter_unpack(payload):
            if name == frames.INITIAL_WINDOW and value > frames.MOST_WINDOW:
                raise Http2Error(frames.FLOW_CONTROL_ERROR, "a window too large")
            if name == frames.MAX_FRAME and not frames.FRAME_BYTES <= value < 1 << 24:
                raise Http2Error(frames.PROTOCOL_ERROR, "a frame size out of bounds")
            window = value if name == frames.INITIAL_WINDOW else window
        self._idle.count(self.out.resize(window) / 100)
        self.out.put(frames.SETTINGS, frames.ACK, 0, b"")

    def _take_ping(self, flags: int, number: int, payload: bytes) -> None:
        check_size(payload, 8)
        if number:
            raise Http2Error(frames.PROTOCOL_ERROR, "a ping of a stream")
        if not flags & frames.ACK:
            self._idle.count(10)
            self.out.put(frames.PING, frames.ACK, 0, payload)

    def _take_window(self, _flags: int, number: int, payload: bytes) -> None:
        check_size(payload, 4)
        self._idle.count(0.1)
        more = int.from_bytes(payload) & 0x7FFFFFFF
        stream = self._streams.get(number)
        if not more:
            raise Http2Error(frames.PROTOCOL_ERROR, "a window that does not grow")
        if not number:
            self.out.widen(more)
        elif stream is not None:
            stream.window += more
            if self.out.first_window + stream.window > frames.MOST_WINDOW:
                stream.reset(frames.FLOW_CONTROL_ERROR)
            else:
                stream.flush()

    def _take_nothing(self, _flags: int, _number: int, _payload: bytes) -> None:
        """Priorities are not kept, a peer that leaves closes the connection itself, and other kinds say nothing to us."""
        self._idle.count()

    def forget(self, stream: Http2Stream) -> None:
        """Drop a stream that is over on our side."""
        stream.is_open = False
        self._streams.pop(stream.number, None)
        self.out.drop(stream)

    def cut(self) -> None:
        """Close at once."""
        self.out.write()
        if self._transport is not None:
            self._transport.close()

    def _end(self, code: int, why: str) -> None:
        self.out.put(frames.GOAWAY, 0, 0, struct.pack(">II", self._last_stream, code) + why.encode())
        self.cut()

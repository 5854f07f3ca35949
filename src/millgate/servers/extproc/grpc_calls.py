"""Calls of gRPC over HTTP/2: messages out of frames, and statuses as trailers (grpc.io, "gRPC over HTTP2")."""

import asyncio
import struct
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from google.protobuf.message import DecodeError

from millgate.servers.extproc.hpack import Field, literal
from millgate.servers.extproc.http2 import Http2Stream

OK, INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL = 0, 3, 5, 8, 12, 13
"""Status codes."""
MOST_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""gRPC's usual bound; Envoy cuts bodies into pieces of at most 1 MB."""
_PREFIX: Final = struct.Struct(">BI")
_LONGEST_TEXT: Final = 100


class CallHandler(Protocol):
    """What a call is for."""

    def on_message(self, data: bytes) -> None:
        """Take one message; DecodeError where it is none."""

    def on_end(self) -> None:
        """The peer says nothing more."""

    def on_closed(self) -> None:
        """The call is over from the other side; nothing can be said any more."""


HandlerMaker = Callable[["GrpcCall"], CallHandler | None]
"""Begins a call; None where it has been ended at once."""


class GrpcCall:
    """One call: `reply` any number of times, then `finish`."""

    __slots__ = ("_buffer", "_stream", "handler", "over")

    def __init__(self, stream: Http2Stream) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self.handler: CallHandler | None = None
        self.over = False

    @property
    def peer(self) -> str:
        """The address at the other end."""
        return self._stream.peer

    def reply(self, message: bytes) -> None:
        """Send a message."""
        self._stream.send(_PREFIX.pack(0, len(message)) + message)

    def finish(self, status: int = OK, text: str = "") -> None:
        """End the call; `text` is plain ASCII."""
        if not self.over:
            self.over = True
            self._stream.finish(_trailers(status, text))

    # ---- what the stream says

    def on_data(self, data: bytes) -> None:
        """Cut messages out of the bytes."""
        if self.over or self.handler is None:
            return
        buffer = self._buffer
        if not buffer and len(data) >= 5 and int.from_bytes(data[1:5]) == len(data) - 5 and not data[0]:
            self._take(data[5:])  # nearly all: one message, whole, in one frame
            return
        buffer += data
        while len(buffer) >= 5 and not self.over:
            is_compressed, size = _PREFIX.unpack_from(buffer)
            if is_compressed or size > MOST_MESSAGE_BYTES:
                self._refuse(
                    UNIMPLEMENTED if is_compressed else RESOURCE_EXHAUSTED, "a compressed or long message"
                )
                return
            if len(buffer) < 5 + size:
                return
            message = bytes(buffer[5 : 5 + size])
            del buffer[: 5 + size]
            self._take(message)

    def _take(self, message: bytes) -> None:
        assert self.handler is not None
        try:
            self.handler.on_message(message)
        except DecodeError:
            self._refuse(INVALID_ARGUMENT, "a message that cannot be read")
        except Exception as error:  # noqa: BLE001 - one call must not end the connection of all
            context = {"message": "a call of Envoy's failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            self._refuse(INTERNAL, "the server failed on this message")

    def _refuse(self, status: int, text: str) -> None:
        self.finish(status, text)
        self.on_closed()

    def on_end(self) -> None:
        """Hand the end on."""
        if self.handler is not None and not self.over:
            self.handler.on_end()

    def on_closed(self) -> None:
        """Hand it on, once."""
        self.over = True
        handler, self.handler = self.handler, None
        if handler is not None:
            handler.on_closed()


def opener(services: Mapping[bytes, HandlerMaker]) -> Callable[[Http2Stream, list[Field]], GrpcCall]:
    """Return what begins a call for the path of a new stream."""

    def begin(stream: Http2Stream, fields: list[Field]) -> GrpcCall:
        call = GrpcCall(stream)
        path = next((value for name, value in fields if name == b":path"), b"")
        make = services.get(path)
        if make is None:
            call.finish(UNIMPLEMENTED, "no such method")
        else:
            call.handler = make(call)
        return call

    return begin


def _trailers(status: int, text: str) -> bytes:
    block = literal(b"grpc-status", b"%d" % status)
    return (
        block + literal(b"grpc-message", text[:_LONGEST_TEXT].encode("ascii", "replace")) if text else block
    )

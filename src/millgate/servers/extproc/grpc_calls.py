"""Calls of gRPC over HTTP/2: messages out of frames, and statuses as trailers (grpc.io, "gRPC over HTTP2")."""

import asyncio
import struct
from collections.abc import Callable, Mapping
from typing import Final

from google.protobuf.message import DecodeError
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from millgate.servers.extproc.hpack import Field, literal
from millgate.servers.extproc.http2 import Http2Stream
from millgate.servers.extproc.settings import PROCESSOR_SERVICE

OK, INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL = 0, 3, 5, 8, 12, 13
"""Status codes."""
MOST_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""gRPC's usual bound; Envoy cuts bodies into pieces of at most 1 MB."""
_PREFIX: Final = struct.Struct(">BI")
_LONGEST_TEXT: Final = 100


class CallHandler:
    """What a call is for; where nothing is said of it, an end changes nothing and nothing is kept."""

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


CHECK: Final = b"/grpc.health.v1.Health/Check"
WATCH: Final = b"/grpc.health.v1.Health/Watch"
LIVENESS, READINESS = "liveness", "readiness"
_SERVING: Final = int(HealthCheckResponse.SERVING)
_NOT_SERVING: Final = int(HealthCheckResponse.NOT_SERVING)
_UNKNOWN: Final = int(HealthCheckResponse.SERVICE_UNKNOWN)


class Health:
    """The status of each name: all serve until the drain, but readiness, which follows the gate."""

    def __init__(self) -> None:
        self._serves = {"": True, LIVENESS: True, READINESS: False, PROCESSOR_SERVICE: True}
        self._watchers: dict[GrpcCall, str] = {}

    @property
    def services(self) -> Mapping[bytes, HandlerMaker]:
        """The methods of the service."""
        return {CHECK: lambda call: _Check(self, call), WATCH: lambda call: _Watch(self, call)}

    def status(self, name: str) -> int:
        """Return the status of this name."""
        serves = self._serves.get(name)
        if serves is None:
            return _UNKNOWN
        return _SERVING if serves else _NOT_SERVING

    def set(self, name: str, *, serves: bool) -> None:
        """Change a status, and tell those that watch it."""
        if self._serves[name] is serves:
            return
        self._serves[name] = serves
        for call, watched in list(self._watchers.items()):
            if watched == name:
                call.reply(_told(self.status(name)))

    def drain(self) -> None:
        """Say that no more work should come; the process lives."""
        for name in self._serves:
            if name != LIVENESS:
                self.set(name, serves=False)

    def watch(self, call: GrpcCall, name: str) -> None:
        """Tell this status now, and when it changes."""
        self._watchers[call] = name
        call.reply(_told(self.status(name)))

    def forget(self, call: GrpcCall) -> None:
        """Tell it no more."""
        self._watchers.pop(call, None)


class _Question(CallHandler):
    """A call that asks for the health."""

    def __init__(self, health: Health, call: GrpcCall) -> None:
        self._health = health
        self._call = call


class _Check(_Question):
    """One question, one answer."""

    def on_message(self, data: bytes) -> None:
        status = self._health.status(HealthCheckRequest.FromString(data).service)
        if status == _UNKNOWN:
            self._call.finish(NOT_FOUND, "unknown service")
        else:
            self._call.reply(_told(status))
            self._call.finish()


class _Watch(_Question):
    """A status that is told whenever it changes."""

    def on_message(self, data: bytes) -> None:
        self._health.watch(self._call, HealthCheckRequest.FromString(data).service)

    def on_closed(self) -> None:
        self._health.forget(self._call)


def _told(status: int) -> bytes:
    return bytes(HealthCheckResponse(status=status).SerializeToString())

"""The services that Envoys call: the external processor, the access log, and health, on one port or two."""

import asyncio
import ssl as tls
from collections.abc import Callable, Mapping
from typing import Final, cast

from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage, StreamAccessLogsResponse
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest

from millgate.servers.extproc.attempt import ExtprocDesk
from millgate.servers.extproc.call import ProcessCall
from millgate.servers.extproc.grpc_calls import (
    INVALID_ARGUMENT,
    READINESS,
    RESOURCE_EXHAUSTED,
    CallHandler,
    GrpcCall,
    HandlerMaker,
    Health,
    opener,
)
from millgate.servers.extproc.http2 import Http2Connection
from millgate.servers.extproc.running import RunningRequests, read_entry
from millgate.servers.extproc.settings import LOG_NAME, PROCESSOR_SERVICE
from millgate.sockets.listening import Listeners, listening_socket

PROCESS: Final = f"/{PROCESSOR_SERVICE}/Process".encode()
ACCESS_LOG: Final = b"/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"
_READY_LOOK_S: Final = 0.5
_BACKLOG: Final = 1024
_HANDSHAKE_S: Final = 10.0
"""An Envoy that connects over TLS has so long."""
_MORE_STREAMS: Final = 100
"""Streams that a connection may have beyond those of requests: logs and health, and the one that is told that it is too many."""


class ExtprocServer:
    """Serves Envoys; build it on the loop that runs it. `is_ready` says whether work should come here."""

    def __init__(self, desk: ExtprocDesk, is_ready: Callable[[], bool]) -> None:
        self._desk = desk
        self._is_ready = is_ready
        self._health = Health()
        self._listeners: list[Listeners] = []
        self._connections: set[Http2Connection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.streams = 0
        """How many requests Envoys have here now."""
        self.refused_streams = 0

    async def listen(
        self, host: str, port: int, health_port: int | None = None, ssl: tls.SSLContext | None = None
    ) -> tuple[int, int | None]:
        """Serve, with `ssl` over TLS; return the ports, any free one where 0 was asked for.

        Health alone is told in the clear. OSError where an address cannot be had.
        """
        services = {
            PROCESS: self._begin,
            ACCESS_LOG: lambda call: _LogStream(self._desk.running, call),
            **self._health.services,
        }
        bound = await self._open(host, port, services, ssl)
        health_bound = None
        if health_port is not None:
            health_bound = await self._open(host, health_port, self._health.services)
        self._desk.running.start()
        self._tell_readiness()
        return bound, health_bound

    async def _open(
        self, host: str, port: int, services: Mapping[bytes, HandlerMaker], ssl: tls.SSLContext | None = None
    ) -> int:
        begin, most = opener(services), self._desk.settings.streams + _MORE_STREAMS
        greeter = _Greeter(lambda: Http2Connection(begin, self._connections, most))
        listeners = Listeners(greeter.meet, greeter, handshake_s=_HANDSHAKE_S, backlog=_BACKLOG)
        bound = await listeners.accept(await listening_socket(host, port, _BACKLOG), ssl)
        self._listeners.append(listeners)
        return bound

    async def secure(self, ssl: tls.SSLContext) -> None:
        """Show Envoys this certificate from now on; those that are connected stay."""
        await self._listeners[0].secure(ssl)

    def _tell_readiness(self) -> None:
        self._health.set(READINESS, serves=self._is_ready())
        self._timer = asyncio.get_running_loop().call_later(_READY_LOOK_S, self._tell_readiness)

    def _begin(self, call: GrpcCall) -> CallHandler | None:
        if self.streams >= self._desk.settings.streams:
            self.refused_streams += 1
            call.finish(RESOURCE_EXHAUSTED, "too many requests are held here")
            return None
        self.streams += 1
        return _ProcessStream(self._desk, call, self._ended)

    def _ended(self) -> None:
        self.streams -= 1

    def drain(self) -> None:
        """Say that no more work should come here; what is here goes on."""
        self._stop_telling()
        self._health.drain()

    def _stop_telling(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def close(self) -> None:
        """Cut every stream."""
        self._stop_telling()
        self._desk.running.stop()
        for listeners in self._listeners:
            listeners.close()
        for connection in list(self._connections):
            connection.cut()
        await asyncio.sleep(0)
        for connection in list(self._connections):
            if (transport := connection.out.transport) is not None:
                transport.abort()  # a close over TLS waits for the peer's word
        for listeners in self._listeners:
            await listeners.wait_closed()


class _Greeter:
    """Makes a connection for each Envoy; nothing is counted of one that fails its handshake."""

    def __init__(self, make: Callable[[], Http2Connection]) -> None:
        self._make = make

    def meet(self) -> asyncio.Protocol:
        return cast("asyncio.Protocol", self._make())

    def met(self, protocol: object) -> None:
        """Hear that a handshake is over."""


class _ProcessStream(CallHandler):
    """One request of Envoy's: the way of a `ProcessCall` in and out; `ended` is called once."""

    def __init__(self, desk: ExtprocDesk, call: GrpcCall, ended: Callable[[], None]) -> None:
        self._call = call
        self._ended: Callable[[], None] | None = ended
        self._process = ProcessCall(desk, self, call.peer)

    # ---- what Envoy says

    def on_message(self, data: bytes) -> None:
        self._process.feed(ProcessingRequest.FromString(data))

    def on_end(self) -> None:
        """Envoy has nothing more to say: of a held request it says by this, too, that the client has left."""
        self._call.finish()
        self.on_closed()

    def on_closed(self) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()
            self._process.closed()

    # ---- what is said to Envoy

    def send(self, response: bytes) -> None:
        self._call.reply(response)

    def close(self) -> None:
        self._call.finish()
        self.on_closed()

    def fail(self, why: str) -> None:
        self._call.finish(INVALID_ARGUMENT, why)
        self.on_closed()


class _LogStream(CallHandler):
    """Entries of an Envoy's access log, for as long as it writes them."""

    def __init__(self, running: RunningRequests, call: GrpcCall) -> None:
        self._running = running
        self._call = call

    def on_message(self, data: bytes) -> None:
        message = StreamAccessLogsMessage.FromString(data)
        if (stated := LOG_NAME.fullmatch(message.identifier.log_name)) is not None:
            self._running.expect(float(stated[1]))
        for entry in message.http_logs.log_entry:
            if (logged := read_entry(entry)) is not None:
                self._running.heard(logged)

    def on_end(self) -> None:
        """Say that it was all read."""
        self._call.reply(StreamAccessLogsResponse().SerializeToString())
        self._call.finish()

"""A processor with engines in this process, and a gRPC client (grpcio, not ours) in Envoy's place."""

import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.gateway import EngineAddress, ExtprocAddress, Gateway, GatewaySettings
from millgate.runtime.callers import CallerSettings
from millgate.servers.emulator import EmulatorSettings, RunningEngine, start_engine
from millgate.servers.extproc.settings import ExtprocSettings
from millgate.servers.http import DoorSettings
from millgate.wiring.governor import build_governor

PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
NONE, STREAMED, BUFFERED, PARTIAL, DUPLEX = range(5)
JSON = (("content-type", "application/json"),)


@dataclass
class Stand:
    """A processor that serves, its engines, and a channel to it."""

    gateway: Gateway
    core: Settings
    engines: tuple[RunningEngine, ...]
    channel: grpc.aio.Channel

    @property
    def destinations(self) -> list[str]:
        """Return `IP:port` of each engine."""
        return [f"{engine.host}:{engine.port}" for engine in self.engines]

    @property
    def running(self) -> int:
        """Return how many streams run, over all engines."""
        return sum(engine.running for engine in self.gateway.driver.snapshot().engines)

    @property
    def queued(self) -> int:
        """Return how many attempts wait."""
        return sum(lane.queued for lane in self.gateway.driver.snapshot().lanes)

    def outcomes(self) -> dict[str, int]:
        """Return how attempts ended, without the zeros."""
        lanes = self.gateway.driver.snapshot().lanes
        return {outcome.value: count for lane in lanes for outcome, count in lane.outcomes if count}

    def open(self) -> "Conversation":
        """Begin a stream, which is one request."""
        call = self.channel.stream_stream(
            PROCESS,
            request_serializer=ProcessingRequest.SerializeToString,
            response_deserializer=ProcessingResponse.FromString,
        )()
        return Conversation(call)


class Conversation:
    """What Envoy says for one request, and what it is told."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def head(
        self,
        *,
        method: str = "POST",
        path: str = "/v1/chat/completions",
        fields: Sequence[tuple[str, str]] = JSON,
        modes: tuple[int, int] | None = (DUPLEX, NONE),
        ends: bool = False,
        subset: str | list[str] | None = None,
    ) -> None:
        """Send a request's head."""
        message = ProcessingRequest()
        for name, value in ((":method", method), (":path", path), (":authority", "a"), *fields):
            header = message.request_headers.headers.headers.add()
            header.key, header.raw_value = name, value.encode()
        message.request_headers.end_of_stream = ends
        if modes is not None:
            message.protocol_config.request_body_mode, message.protocol_config.response_body_mode = modes
        if subset is not None:
            space = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
            space.update({"x-gateway-destination-endpoint-subset": subset})
        await self.call.write(message)

    async def body(self, data: bytes, *, ends: bool = True) -> None:
        """Send a piece of its body."""
        message = ProcessingRequest()
        message.request_body.body, message.request_body.end_of_stream = data, ends
        await self.call.write(message)

    async def trailers(self) -> None:
        """End the body by trailers."""
        await self.call.write(ProcessingRequest(request_trailers={}))

    async def answer(
        self,
        status: int,
        pieces: Sequence[bytes],
        kind: str = "text/event-stream",
        *,
        ends: bool = True,
    ) -> list[bytes]:
        """Send an engine's answer as Envoy does, and return what comes back of its body; trailers may follow unless it `ends`."""
        message = ProcessingRequest()
        for name, value in ((":status", str(status)), ("content-type", kind)):
            header = message.response_headers.headers.headers.add()
            header.key, header.raw_value = name, value.encode()
        await self.call.write(message)
        assert (await self.told()).HasField("response_headers")
        echoed = []
        for number, piece in enumerate(pieces, 1):
            message = ProcessingRequest()
            message.response_body.body, message.response_body.end_of_stream = (
                piece,
                ends and number == len(pieces),
            )
            await self.call.write(message)
            echoed.append((await self.told()).response_body.response.body_mutation.streamed_response.body)
        return echoed

    async def told(self) -> ProcessingResponse:
        """Return the next message."""
        message = await self.call.read()
        assert message is not grpc.aio.EOF, "the stream has ended"
        return message

    async def code(self) -> grpc.StatusCode:
        """Return how the stream ended."""
        code: grpc.StatusCode = await self.call.code()
        return code


@asynccontextmanager
async def standing(
    *,
    engines: int = 1,
    max_inflight: int = 8,
    max_queue: int | None = None,
    door: ExtprocSettings | None = None,
    callers: CallerSettings | None = None,
    health_port: int | None = None,
    api_key: str | None = None,
    tls: tuple[ssl.SSLContext, bytes] | None = None,
) -> AsyncIterator[Stand]:
    """Serve until the block ends, with `tls` over it: a context for the processor, and the authority that the client knows."""
    running = [await start_engine(EmulatorSettings(port=0, time_scale=10.0)) for _ in range(engines)]
    names = [f"engine-{number}" for number in range(engines)]
    lane = LaneSettings("interactive", max_queue=max_queue)
    other = LaneSettings("other", max_queue=max_queue)
    core = Settings(
        lanes=(lane, other),
        engines=tuple(EngineSettings(name, max_inflight, own_key=api_key is not None) for name in names),
    )
    settings = GatewaySettings(
        engines=tuple(
            EngineAddress(name, engine.host, engine.port, api_key=api_key)
            for name, engine in zip(names, running, strict=True)
        ),
        extproc=ExtprocAddress(
            port=0, health_port=health_port, door=door or ExtprocSettings(), ssl=tls[0] if tls else None
        ),
        callers=callers or CallerSettings(lanes=("interactive", "other")),
        door=DoorSettings(loop_lag_s=30.0),
    )
    gateway = Gateway(build_governor(core, time.monotonic()), settings)
    await gateway.start()
    assert gateway.extproc is not None
    try:
        async with channel(gateway.extproc.port, tls[1] if tls else None) as opened:
            yield Stand(gateway, core, tuple(running), opened)
    finally:
        await gateway.stop()
        for engine in running:
            await engine.stop()


def channel(port: int, authority: bytes | None) -> grpc.aio.Channel:
    """Return a channel to a processor, over TLS with the `authority` that it must have its certificate of."""
    if authority is None:
        return grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    return grpc.aio.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(authority))


async def health_of(stand: Stand, name: str) -> int:
    """Ask for the health of this name."""
    check = stand.channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=HealthCheckRequest.SerializeToString,
        response_deserializer=HealthCheckResponse.FromString,
    )
    return int((await check(HealthCheckRequest(service=name))).status)

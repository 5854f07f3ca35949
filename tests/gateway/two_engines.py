"""A gateway in front of two engines, one that reads prompts and one that answers: embedded ones, or scripts that misbehave."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.harness import ROLE, Asked, Client, FakeEngine, Script, event, until
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior, Settings
from millgate.core.snapshot import EngineSnapshot, LegsSnapshot
from millgate.core.words import IgnoresHangups, Role
from millgate.gateway import AdminAddress, EngineAddress, Gateway, GatewaySettings
from millgate.servers.emulator import EmulatorSettings, RunningEngine, start_engine
from millgate.servers.http import DoorSettings
from millgate.wiring.governor import build_governor

NIXL = EmulatorSettings(port=0, time_scale=10.0, kv_transfer="nixl")
# The engine that answers reads so slowly, as far as the gate knows, that every prompt is read by the other.
_READS = ServicePrior(0.001, 1e-6, 0.001, 1e-5, certain=True)
_WRITES = ServicePrior(0.001, 1e-3, 0.001, 1e-5, certain=True)
LONG = "The quick brown fox jumps over it. " * 40
"""A prompt of some 350 tokens."""


def prior_of(role: Role) -> ServicePrior:
    """Return how fast an engine with this role is, as far as the gate knows."""
    return _READS if role is Role.PREFILL else _WRITES


def core(lease_s: float = 30.0, writers: int = 1) -> Settings:
    """Return settings of a gate with one engine that reads and so many that answer."""
    no = IgnoresHangups.NO
    reads = EngineSettings(
        "reads", 64, 1_000_000, prior=_READS, role=Role.PREFILL, kv_lease_s=lease_s, ignores_hangups=no
    )
    names = ["writes", "also-writes"][:writers]
    answers = [
        EngineSettings(name, 64, 1_000_000, prior=_WRITES, role=Role.DECODE, ignores_hangups=no)
        for name in names
    ]
    return Settings((LaneSettings("interactive", ttft_slo_s=20.0, deadline_s=20.0),), (reads, *answers))


def ask(content: str = LONG, **more: Any) -> bytes:
    """Return the body of a request for a long prompt."""
    return json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 8, **more}
    ).encode()


async def begins_and_goes_on(asked: Asked) -> None:
    """Write the first words of a stream, and wait for a hang-up."""
    asked.open_stream()
    asked.send(ROLE, event("hel"))
    await asked.hung_up()


async def begins_and_dies(asked: Asked) -> None:
    """Write the beginning of an answer, and cut the connection."""
    if json.loads(asked.body).get("stream"):
        asked.open_stream()
        asked.send(ROLE, event("hel"))
        await asyncio.sleep(0.05)
    else:
        asked.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{")
    asked.cut()


@dataclass
class TwoEngines:
    """The gateway, and what clients and tests see of it."""

    gateway: Gateway
    clients: list[Client] = field(default_factory=list)

    async def client(self) -> Client:
        """Connect a new client."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self.gateway.port))
        self.clients.append(client)
        return client

    def legs(self) -> LegsSnapshot:
        """Return what became of first legs."""
        return self.gateway.driver.snapshot().legs

    def seen(self, name: str) -> EngineSnapshot:
        """Return one engine as the gate sees it."""
        return next(each for each in self.gateway.driver.snapshot().engines if each.name == name)

    def is_idle(self) -> bool:
        """Return whether every meter of every engine is back at zero."""
        engines = self.gateway.driver.snapshot().engines
        return all((each.running, each.kv_tokens, each.prefill_tokens) == (0, 0, 0) for each in engines)

    async def idle(self, within_s: float = 5.0) -> None:
        """Wait until every meter is back at zero."""
        await until(self.is_idle, within_s)


@contextlib.asynccontextmanager
async def gating(
    ports: Sequence[tuple[str, int]],
    settings: Settings,
    lease_s: float = 30.0,
    rooms: Mapping[str, int] | None = None,
) -> AsyncIterator[TwoEngines]:
    """Serve a gateway in front of these engines, by name and port; `rooms` are ports where SGLang's meet."""
    met = rooms or {}
    addresses = tuple(
        EngineAddress(name, "127.0.0.1", port, health=None, kv_lease_s=lease_s, bootstrap_port=met.get(name))
        for name, port in ports
    )
    told = GatewaySettings(
        addresses, port=0, admin=AdminAddress(port=0), drain_grace_s=1.0, door=DoorSettings(hands_over=True)
    )
    two = TwoEngines(Gateway(build_governor(settings, time.monotonic()), told))
    await two.gateway.start()
    try:
        yield two
    finally:
        for client in two.clients:
            client.leave()
        await two.gateway.stop()


@contextlib.asynccontextmanager
async def embedded(
    *, reads: dict[str, Any] | None = None, writes: dict[str, Any] | None = None, lease_s: float = 30.0
) -> AsyncIterator[tuple[TwoEngines, RunningEngine, RunningEngine]]:
    """Serve a gateway in front of two embedded engines with these settings."""
    first = await start_engine(replace(NIXL, kv_lease_s=lease_s, **(reads or {})))
    second = await start_engine(replace(NIXL, **(writes or {})))
    try:
        ports = (("reads", first.port), ("writes", second.port))
        async with gating(ports, core(lease_s), lease_s) as two:
            yield two, first, second
    finally:
        await first.stop()
        await second.stop()


@contextlib.asynccontextmanager
async def scripted(
    reads: Script, writes: Script, *, lease_s: float = 30.0, also_writes: Script | None = None
) -> AsyncIterator[tuple[TwoEngines, FakeEngine, FakeEngine]]:
    """Serve a gateway in front of two scripts; with `also_writes` there is a second engine that answers."""
    first, second, third = FakeEngine(reads), FakeEngine(writes), FakeEngine(also_writes or writes)
    for engine in (first, second, third):
        await engine.start()
    try:
        ports = [("reads", first.port), ("writes", second.port), ("also-writes", third.port)]
        several = also_writes is not None
        settings = core(lease_s, 2 if several else 1)
        async with gating(ports if several else ports[:2], settings, lease_s) as two:
            yield two, first, second
    finally:
        for engine in (first, second, third):
            await engine.stop()

"""A whole gateway in front of the embedded engine, on sockets, for clients of every kind."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.gateway import EngineAddress, Gateway, GatewaySettings
from millgate.servers.emulator import EmulatorSettings, RunningEngine, start_engine
from millgate.servers.http import DoorSettings
from millgate.wiring.governor import build_governor


@dataclass(frozen=True)
class Served:
    """A gateway that serves, and the engines behind it."""

    gateway: Gateway
    engines: tuple[RunningEngine, ...]

    @property
    def url(self) -> str:
        """Return the gateway's base URL."""
        return f"http://127.0.0.1:{self.gateway.port}"

    def outcomes(self) -> dict[str, int]:
        """Return how attempts ended, by outcome, without the zeros."""
        lane = self.gateway.driver.snapshot().lanes[0]
        return {outcome.value: count for outcome, count in lane.outcomes if count}


@asynccontextmanager
async def served(
    *,
    engines: int = 1,
    max_inflight: int = 8,
    max_queue: int | None = None,
    deadline_s: float = 10.0,
    door: DoorSettings | None = None,
) -> AsyncIterator[Served]:
    """Serve until the block ends."""
    running = [await start_engine(EmulatorSettings(port=0, time_scale=10.0)) for _ in range(engines)]
    names = [f"engine-{number}" for number in range(engines)]
    lane = LaneSettings("interactive", ttft_slo_s=deadline_s, deadline_s=deadline_s, max_queue=max_queue)
    core = Settings(lanes=(lane,), engines=tuple(EngineSettings(name, max_inflight) for name in names))
    addresses = tuple(
        EngineAddress(name, engine.host, engine.port) for name, engine in zip(names, running, strict=True)
    )
    # Clients, gateway and engines share one loop here: its lag is the test's own.
    door = replace(door or DoorSettings(), loop_lag_s=30.0)
    settings = GatewaySettings(engines=addresses, port=0, door=door)
    gateway = Gateway(build_governor(core, time.monotonic()), settings)
    await gateway.start()
    try:
        yield Served(gateway, tuple(running))
    finally:
        await gateway.stop()
        for engine in running:
            await engine.stop()

"""A gateway with settings of the test's choice in front of fake engines, and a metrics page to read."""

import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from gateway.harness import FakeEngine, Script, Stand, answer_whole
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.gateway import AdminAddress, EngineAddress, Gateway, GatewaySettings
from millgate.wiring.governor import build_governor


def core_settings(
    *engines: str, max_inflight: int = 4, lanes: Sequence[LaneSettings] = (LaneSettings("interactive"),)
) -> Settings:
    """Return settings of a core with these engines."""
    return Settings(
        tuple(lanes), tuple(EngineSettings(name, max_inflight) for name in engines or ("engine",))
    )


@contextlib.asynccontextmanager
async def gating(
    script: Script = answer_whole,
    *,
    core: Settings | None = None,
    address: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Stand]:
    """Serve a gateway in front of one fake engine; `address` and `settings` go to the records of those names."""
    engine = FakeEngine(script)
    await engine.start()
    place = {"host": "127.0.0.1", **(address or {})}
    addresses = (EngineAddress("engine", port=engine.port, **place),)
    told = GatewaySettings(addresses, port=0, admin=AdminAddress(port=0), drain_grace_s=5.0, **settings)
    stand = Stand(Gateway(build_governor(core or core_settings(), time.monotonic()), told), engine)
    await stand.gateway.start()
    try:
        yield stand
    finally:
        await stand.close()

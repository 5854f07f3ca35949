"""A gateway in front of engines that meet in a room (SGLang): embedded ones, or scripts that misbehave."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from gateway.harness import Asked, FakeEngine, Script
from gateway.two_engines import TwoEngines, gating, prior_of
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.core.words import IgnoresHangups, KvTransfer, Role
from millgate.servers.emulator import EmulatorSettings, RunningEngine, start_engine

ROOM_PORT = 8998


def core(names: Mapping[str, Role]) -> Settings:
    """Return settings of a gate with these engines, each of which does its role only."""
    engines = tuple(
        EngineSettings(
            name,
            64,
            1_000_000,
            prior=prior_of(role),
            role=role,
            kv_transfer=KvTransfer.SGLANG,
            ignores_hangups=IgnoresHangups.NO,
        )
        for name, role in names.items()
    )
    return Settings((LaneSettings("interactive", ttft_slo_s=20.0, deadline_s=20.0),), engines)


@contextlib.asynccontextmanager
async def scripted(**scripts: Script) -> AsyncIterator[tuple[TwoEngines, Mapping[str, FakeEngine]]]:
    """Serve a gateway in front of these scripts; those whose name ends with `reads` read."""
    roles = {name: Role.PREFILL if name.endswith("reads") else Role.DECODE for name in scripts}
    engines = {name: FakeEngine(script) for name, script in scripts.items()}
    for engine in engines.values():
        await engine.start()
    try:
        ports = [(name, engine.port) for name, engine in engines.items()]
        rooms = {name: ROOM_PORT for name, role in roles.items() if role is Role.PREFILL}
        async with gating(ports, core(roles), rooms=rooms) as two:
            yield two, engines
    finally:
        for engine in engines.values():
            await engine.stop()


@contextlib.asynccontextmanager
async def embedded(
    *, timeout_s: float = 30.0, reads: dict[str, Any] | None = None, writes: dict[str, Any] | None = None
) -> AsyncIterator[tuple[TwoEngines, RunningEngine, RunningEngine]]:
    """Serve a gateway in front of two embedded engines that wait so long for each other."""
    settings = EmulatorSettings(port=0, time_scale=10.0, kv_lease_s=timeout_s)
    first = await start_engine(replace(settings, kv_transfer="sglang-prefill", **(reads or {})))
    second = await start_engine(replace(settings, kv_transfer="sglang-decode", **(writes or {})))
    try:
        ports = (("reads", first.port), ("writes", second.port))
        roles = {"reads": Role.PREFILL, "writes": Role.DECODE}
        async with gating(ports, core(roles), rooms={"reads": first.port}) as two:
            yield two, first, second
    finally:
        await first.stop()
        await second.stop()


async def waits(asked: Asked) -> None:
    """Do nothing, as an engine whose other one does not come."""
    await asked.hung_up()

"""An engine that nothing can stand in for is not taken out for failed requests, whatever else the gate has."""

import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from gateway.harness import Asked, FakeEngine, Script, Stand, answer_whole, chat, run, until
from millgate.core.settings import AccountSettings, EngineSettings, LaneSettings, QuotaLimit, Settings
from millgate.core.words import QuotaKind
from millgate.gateway import EngineAddress, Gateway, GatewaySettings
from millgate.runtime.health import Stance
from millgate.wiring.governor import build_governor

ACCOUNT = AccountSettings((QuotaLimit(QuotaKind.RPM, 6000.0),))


async def broken(asked: Asked) -> None:
    asked.reply(b'{"error":{"message":"boom"}}', 500)


async def full(asked: Asked) -> None:
    asked.reply(b'{"error":{"message":"requests per minute"}}', 429, retry_after="30")


@contextlib.asynccontextmanager
async def beside(other: Script, settings: EngineSettings) -> AsyncIterator[Stand]:
    """Serve before an engine that fails every request, and this other one."""
    engine, companion = FakeEngine(broken), FakeEngine(other)
    await engine.start()
    await companion.start()
    core = Settings(
        lanes=(LaneSettings("interactive"),),
        engines=(settings, EngineSettings("engine", 4, models=("m",) if settings.models else ())),
    )
    addresses = (
        EngineAddress(
            settings.name, "127.0.0.1", companion.port, metered=settings.account is not None, health=None
        ),
        EngineAddress("engine", "127.0.0.1", engine.port, health=None),
    )
    gateway = Gateway(build_governor(core, time.monotonic()), GatewaySettings(addresses, port=0))
    await gateway.start()
    stand = Stand(gateway, engine)
    try:
        yield stand
    finally:
        await stand.close()
        await companion.stop()


@pytest.mark.parametrize(
    ("other", "settings"),
    [
        (full, EngineSettings("hosted", 4, account=ACCOUNT)),
        (answer_whole, EngineSettings("other", 4, models=("another",))),
    ],
    ids=["its companion is an account that pauses", "its companion serves another model"],
)
def test_an_engine_whose_companion_cannot_take_its_work_keeps_it(
    other: Script, settings: EngineSettings
) -> None:
    """It was out for a second and more after three failures, and every request was refused with `no_engine`."""

    async def body() -> None:
        async with beside(other, settings) as stand:
            if settings.account is not None:
                await until_paused(stand)
            answers = [await stand.ask(chat()) for _ in range(6)]
            assert [each.status for each in answers] == [500] * 6
            assert [each.stance for each in stand.gateway.fleet.standings] == [Stance.UP] * 2

    async def until_paused(stand: Stand) -> None:
        while (await stand.ask(chat())).status != 429:
            pass
        await until(lambda: any(each.account and each.account.paused_s for each in stand.snapshot.engines))

    run(body())

"""The process: signals and how it ends."""

import asyncio
import gc
import os
import signal
import time
from collections.abc import Iterator

import pytest

from gateway.harness import Asked, Client, FakeEngine, chat, event, run
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.gateway import EngineAddress, Gateway, GatewaySettings, ProcessEnding, serve
from millgate.wiring.governor import build_governor


@pytest.fixture(autouse=True)
def _collector_as_before() -> Iterator[None]:
    """Give the test process its garbage collector back: `serve` tunes it for a process of its own."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


async def stream_for_ever(asked: Asked) -> None:
    asked.open_stream()
    asked.send(event("a"))
    await asked.hung_up(60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_an_idle_gateway_and_a_second_one_cuts_a_busy_one(number: signal.Signals) -> None:
    async def body() -> None:
        engine = FakeEngine(stream_for_ever)
        await engine.start()
        core = Settings((LaneSettings("interactive"),), (EngineSettings("e", 4),))
        settings = GatewaySettings((EngineAddress("e", "127.0.0.1", engine.port),), port=0, drain_grace_s=60)
        for busy, expected in ((False, ProcessEnding.DRAINED), (True, ProcessEnding.CUT_SHORT)):
            ready: asyncio.Future[Gateway] = asyncio.get_running_loop().create_future()
            governor = build_governor(core, time.monotonic())
            serving = asyncio.ensure_future(serve(governor, settings, on_ready=ready.set_result))
            gateway = await ready
            if busy:
                client = Client(*await asyncio.open_connection("127.0.0.1", gateway.port))
                client.ask(chat(stream=True))
                await client.head()
            os.kill(os.getpid(), number)
            if busy:
                await asyncio.sleep(0.1)
                assert gateway.draining
                assert not serving.done()
                os.kill(os.getpid(), number)
            assert await serving is expected
            if busy:
                client.leave()
        await engine.stop()

    run(body())

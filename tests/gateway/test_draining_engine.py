"""An engine that its configuration drains: it ends what it has, gets nothing new, and is known when it is back."""

import asyncio
from dataclasses import replace

from gateway.harness import DONE, Asked, FakeEngine, chat, event, run
from gateway.stand import core_settings, gating
from millgate.gateway import EngineAddress
from millgate.runtime.health import Stance


def test_an_engine_that_drains_finishes_its_streams_and_gets_work_again_when_it_is_told_to() -> None:
    old_end = asyncio.Event()

    async def stream(asked: Asked) -> None:
        asked.open_stream()
        asked.send(event("a"))
        await old_end.wait()
        asked.send(event(finish="stop"), DONE)
        asked.end_stream()

    async def body() -> None:
        second = FakeEngine()
        await second.start()
        async with gating(stream) as stand:
            gateway, core = stand.gateway, core_settings("engine", "second")
            address = gateway.settings.engines[0]
            other = EngineAddress("second", "127.0.0.1", second.port)

            async def adopt(*engines: EngineAddress) -> None:
                await gateway.adopt(replace(gateway.settings, engines=engines), core)

            client = await stand.client()
            client.ask(chat(stream=True))
            await client.head()
            await adopt(replace(address, drains=True), other)
            drained = gateway.fleet.standings[0]
            assert (drained.stance, drained.why) == (Stance.DOWN, "its configuration says drain")
            assert (await stand.ask(chat("new"))).status == 200
            assert (len(stand.engine.asked), len(second.asked)) == (1, 1)
            old_end.set()
            parts = [await client.chunk() for _ in range(2)]
            assert b"[DONE]" in b"".join(parts)
            await adopt(address, replace(other, drains=True))
            assert gateway.fleet.standings[0].stance is Stance.UP
            assert (await stand.ask(chat("newer", stream=True))).status == 200
            assert (len(stand.engine.asked), len(second.asked)) == (2, 1)
        await second.stop()

    run(body())


def test_where_every_engine_drains_clients_are_told_to_come_back() -> None:
    async def body() -> None:
        async with gating() as stand:
            draining = replace(stand.gateway.settings.engines[0], drains=True)
            await stand.gateway.adopt(
                replace(stand.gateway.settings, engines=(draining,)), core_settings("engine")
            )
            refused = await stand.ask(chat())
            assert (refused.status, refused.json()["error"]["code"]) == (503, "no_healthy_upstream")
            assert "retry-after" in refused.headers

    run(body())

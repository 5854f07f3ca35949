"""A client that reads slowly is nothing that its engine is judged by."""

import asyncio

from gateway.harness import Asked, chat, event, run, standing, usage_event
from millgate.core.settings import LaneSettings
from millgate.runtime.health import Stance


def test_a_client_that_stops_reading_its_stream_does_not_make_the_engine_look_slow() -> None:
    """The stream comes as fast as the client reads; the learned pace, the limit and the objective took that for the engine's."""

    async def script(asked: Asked) -> None:
        asked.open_stream()
        for _ in range(200):
            asked.send(event("x" * 10_000))
            await asked.writer.drain()
        asked.send(event(finish="stop"), usage_event(10, 200), b"data: [DONE]\n\n")
        asked.end_stream()

    async def body() -> None:
        async with standing(script, lane=LaneSettings("interactive", tpot_slo_s=0.005)) as stand:
            client = await stand.client()
            client.ask(chat(stream=True))
            await client.head()
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(1.5)
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            while await client.chunk():
                pass
            await stand.settle()
            assert stand.outcomes() == {"good": 1}

    run(body())


def test_an_engine_that_cuts_off_what_a_client_did_not_read_is_not_taken_for_failing() -> None:
    """A proxy before the engine gives up on a reader that stands still; its failures were counted as the engine's."""

    async def script(asked: Asked) -> None:
        asked.open_stream()
        for _ in range(200):
            asked.send(event("x" * 10_000))
        await asyncio.sleep(1.0)
        asked.cut()

    async def body() -> None:
        async with standing(script) as stand:
            clients = [await stand.client() for _ in range(4)]
            for client in clients:
                client.ask(chat(stream=True))
                await client.head()
                client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(1.5)
            for client in clients:
                client.writer.transport.resume_reading()  # type: ignore[attr-defined]
                while client.reader.at_eof() is False and await client.reader.read(65_536):
                    pass
            await stand.settle()
            assert stand.outcomes() == {"engine_failed": 4}
            (engine,) = stand.gateway.fleet.standings
            assert (engine.stance, engine.failing) == (Stance.UP, "")

    run(body())

"""Errors of engines in a field of an event that SDKs pass over."""

import asyncio
import json

from gateway.harness import DONE, ROLE, Asked, chat, event, run, standing

ERROR = (
    b'{"code":400,"message":"the request exceeds the available context size","type":"invalid_request_error"}'
)
FIELD = b"error: " + ERROR + b"\n\n"


def test_an_error_that_old_llama_cpps_put_beside_the_data_becomes_an_error_status() -> None:
    """ggml-org/llama.cpp#16109: `[DONE]` follows, and SDKs took the stream for a whole answer."""

    async def script(asked: Asked) -> None:
        asked.open_stream()
        asked.send(FIELD, DONE)
        asked.end_stream()

    async def body() -> None:
        async with standing(script) as stand:
            got = await stand.ask(chat(stream=True))
            assert (got.status, got.error) == (400, json.loads(ERROR))
            await stand.settle()
            assert stand.outcomes() == {"bad_request": 1}

    run(body())


def test_within_a_stream_it_is_told_in_an_event_that_sdks_read_and_the_stream_cut() -> None:
    async def script(asked: Asked) -> None:
        asked.open_stream()
        asked.send(ROLE, event("a"))
        await asked.writer.drain()
        await asyncio.sleep(0.02)
        asked.send(FIELD, DONE)
        asked.end_stream()

    async def body() -> None:
        async with standing(script) as stand:
            got = await stand.ask(chat(stream=True))
            assert got.body == ROLE + event("a") + b'data: {"error":' + ERROR + b"}\n\n"
            assert not got.whole
            await stand.settle()
            assert stand.outcomes() == {"engine_failed": 1}

    run(body())

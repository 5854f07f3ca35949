"""What Anthropic's SDK raises before the embedded engine: its own errors, with its own words in them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest

from gateway.harness import run
from millgate.servers.emulator import EmulatorSettings, start_engine


@asynccontextmanager
async def before(**settings: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """Ask one engine, without retries, until the block ends."""
    engine = await start_engine(EmulatorSettings(port=0, time_scale=10.0, **settings))
    url = f"http://{engine.host}:{engine.port}"
    try:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
            yield client
    finally:
        await engine.stop()


def message(client: anthropic.AsyncAnthropic, max_tokens: int = 5) -> Awaitable[Any]:
    """Ask for a short message."""
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    return client.messages.create(model="m", max_tokens=max_tokens, messages=messages)


async def impossible(client: anthropic.AsyncAnthropic) -> None:
    await message(client, -1)


async def unknown(client: anthropic.AsyncAnthropic) -> None:
    await client.messages.batches.list()


async def wrong_method(client: anthropic.AsyncAnthropic) -> None:
    await client.get("/v1/messages", cast_to=object)


@pytest.mark.parametrize(
    ("ask", "settings", "status", "kind"),
    [
        (impossible, {}, 400, "invalid_request_error"),
        (unknown, {}, 404, "not_found_error"),
        (wrong_method, {}, 405, "invalid_request_error"),
        (message, {"fail_rate": 1.0}, 500, "api_error"),
    ],
)
def test_an_error_of_the_engine_has_the_shape_that_the_sdk_reads(
    ask: Callable[[anthropic.AsyncAnthropic], Awaitable[Any]], settings: Any, status: int, kind: str
) -> None:
    """It was OpenAI's: `error.type` was what vLLM calls it, and the body had no `type`."""

    async def body() -> None:
        async with before(**settings) as client:
            with pytest.raises(anthropic.APIStatusError) as raised:
                await ask(client)
            assert raised.value.status_code == status
            said: Any = raised.value.body
            assert (said["type"], said["error"]["type"]) == ("error", kind)
            assert said["error"]["message"]

    run(body())


def test_a_full_queue_is_an_overload_for_the_sdk() -> None:
    async def body() -> None:
        async with before(max_num_seqs=1, max_num_queued_reqs=1) as client:
            before_it = [asyncio.ensure_future(message(client, 2_000)) for _ in range(2)]
            await asyncio.sleep(0.5)
            with pytest.raises(anthropic.APIStatusError) as raised:
                await message(client)
            said: Any = raised.value.body
            assert (raised.value.status_code, said["error"]["type"]) == (503, "overloaded_error")
            for each in before_it:
                each.cancel()

    run(body())

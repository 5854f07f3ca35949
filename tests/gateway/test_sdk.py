"""The `openai` SDK, unmodified, in front of the whole gateway."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest

from gateway.harness import DONE, ROLE, Asked, Stand, answer_whole, chat, event, run, standing, until
from millgate.core.decisions import Decision, Yield
from millgate.core.events import Arrived, Event
from millgate.core.settings import LaneSettings

MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def sdk(stand: Stand, max_retries: int = 0) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"http://127.0.0.1:{stand.gateway.port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="sk-test", max_retries=max_retries) as client:
        yield client


def test_it_works_streaming_and_not() -> None:
    async def body() -> None:
        async with standing() as stand, sdk(stand) as client:
            whole = await client.chat.completions.create(model="m", messages=MESSAGES)
            assert whole.choices[0].message.content == "hello"
            assert whole.usage is not None
            stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
            assert "".join(parts) == "hello"

    run(body())


def test_it_gets_the_usage_that_it_asks_for() -> None:
    async def body() -> None:
        async with standing() as stand, sdk(stand) as client:
            stream = await client.chat.completions.create(
                model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.completion_tokens == 2

    run(body())


class Attempts:
    """Notes when attempts arrived, with their retry labels, and the hints of the refusals."""

    def __init__(self) -> None:
        self.arrived: list[tuple[float, int | None]] = []
        self.hints: list[Yield] = []

    def on_step(self, happened: Event, decisions: tuple[Decision, ...], now: float) -> None:
        if isinstance(happened, Arrived):
            self.arrived.append((now, happened.retry_count))
        self.hints += [decision for decision in decisions if isinstance(decision, Yield)]


def test_it_comes_back_when_it_was_told_to_and_not_before() -> None:
    release = asyncio.Event()

    async def script(asked: Asked) -> None:
        if b"first" in asked.body:
            await release.wait()
        await answer_whole(asked)

    async def body() -> None:
        lane = LaneSettings("interactive", max_queue=0)
        async with standing(script, max_inflight=1, lane=lane) as stand, sdk(stand, max_retries=1) as client:
            attempts = Attempts()
            stand.gateway.driver.observers.append(attempts)
            busy = await stand.client()
            busy.ask(chat("first", max_tokens=10))
            await stand.engine.next()
            answer = asyncio.ensure_future(client.chat.completions.create(model="m", messages=MESSAGES))
            await until(lambda: attempts.hints)
            release.set()
            assert (await answer).choices[0].message.content == "hello"
            (hint,) = attempts.hints
            _, (first_at, _), (second_at, label) = attempts.arrived
            assert hint.retry
            assert label == 1
            assert hint.retry_after_s <= second_at - first_at + 0.002  # said in whole milliseconds
            assert second_at - first_at < hint.retry_after_s + 1.0

    run(body())


def test_it_does_not_come_back_when_that_is_of_no_use() -> None:
    async def wait_for_ever(asked: Asked) -> None:
        await asked.hung_up(60)

    async def body() -> None:
        lane = LaneSettings("interactive", ttft_slo_s=0.2, deadline_s=0.2, max_queue=0)
        async with standing(wait_for_ever, max_inflight=1, lane=lane) as stand, sdk(stand, 2) as client:
            attempts = Attempts()
            stand.gateway.driver.observers.append(attempts)
            busy = await stand.client()
            busy.ask(chat("first", max_tokens=4000, stream=True))
            await stand.engine.next()
            with pytest.raises(openai.InternalServerError) as caught:
                await client.chat.completions.create(model="m", messages=MESSAGES)
            assert caught.value.response.headers["x-should-retry"] == "false"
            assert len(attempts.arrived) == 2
            busy.leave()

    run(body())


def test_a_broken_stream_is_an_error_and_never_an_end() -> None:
    async def script(asked: Asked) -> None:
        asked.open_stream()
        asked.send(ROLE, event("a"))
        await asked.writer.drain()
        await asyncio.sleep(0.02)
        asked.send(event(finish="abort"), DONE)
        asked.end_stream()

    async def body() -> None:
        async with standing(script) as stand, sdk(stand) as client:
            stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            with pytest.raises(openai.APIError):
                async for _ in stream:
                    pass

    run(body())

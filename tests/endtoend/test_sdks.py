"""Unmodified SDKs through the gateway to the embedded engine: streams, tool calls, and every surface that they know."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest

from endtoend.served import Served, served
from gateway.harness import run, until
from millgate.servers.http import DoorSettings
from millgate.servers.http.keep_alive import KeptAlive

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
}
ARGUMENTS = {"city": "tok", "unit": "celsius"}
ASKED: Any = [{"role": "user", "content": "What is the weather?"}]


@asynccontextmanager
async def openai_at(gate: Served, max_retries: int = 0) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=gate.url + "/v1", api_key="sk-test", max_retries=max_retries
    ) as client:
        yield client


@asynccontextmanager
async def anthropic_at(gate: Served, max_retries: int = 0) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=gate.url, api_key="sk-test", max_retries=max_retries
    ) as client:
        yield client


def test_openai_chat_calls_a_tool_streamed_and_whole_and_goes_on_with_its_result() -> None:
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]

    async def story() -> None:
        async with served() as gate, openai_at(gate) as client:
            whole = await client.chat.completions.create(model="m", messages=ASKED, tools=tools, max_tokens=6)
            choice = whole.choices[0]
            assert choice.finish_reason == "tool_calls"
            assert choice.message.tool_calls is not None
            call: Any = choice.message.tool_calls[0]
            assert (call.function.name, json.loads(call.function.arguments)) == ("weather", ARGUMENTS)

            async with client.chat.completions.stream(
                model="m", messages=ASKED, tools=tools, max_tokens=6
            ) as stream:
                final = await stream.get_final_completion()
            assert final.choices[0].message.tool_calls is not None
            streamed: Any = final.choices[0].message.tool_calls[0]
            assert json.loads(streamed.function.arguments) == ARGUMENTS

            answer = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
            messages = [*ASKED, choice.message.model_dump(exclude_none=True), answer]
            last = await client.chat.completions.create(
                model="m", messages=messages, tools=tools, max_tokens=3
            )
            assert last.choices[0].message.content == " tok tok tok"
            assert gate.outcomes() == {"good": 3}

    run(story())


def test_openai_responses_stream_and_are_fetched_and_deleted_where_they_are_kept() -> None:
    async def story() -> None:
        async with served(engines=3) as gate, openai_at(gate) as client:
            for number in range(6):
                async with client.responses.stream(
                    model="m", input=f"hello {number}", extra_body={"millgate_output_tokens": 4}
                ) as stream:
                    kinds = [event.type async for event in stream]
                    kept = await stream.get_final_response()
                assert kinds[0] == "response.created"
                assert kinds[-1] == "response.completed"
                assert kept.output_text == " tok" * 4
                assert (await client.responses.retrieve(kept.id)).output_text == " tok" * 4
                assert (await client.responses.cancel(kept.id)).id == kept.id
                await client.responses.delete(kept.id)
                with pytest.raises(openai.NotFoundError):
                    await client.responses.retrieve(kept.id)
            with pytest.raises(openai.NotFoundError) as caught:
                await client.responses.retrieve("resp_nobody_has_this")
            assert caught.value.code == "not_found"
            assert gate.outcomes() == {"good": 6}

    run(story())


def test_openai_responses_call_a_tool() -> None:
    tools: Any = [{"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}]

    async def story() -> None:
        async with served() as gate, openai_at(gate) as client:
            whole = await client.responses.create(model="m", input="weather?", tools=tools, store=False)
            (call,) = whole.output
            assert call.type == "function_call"
            assert json.loads(call.arguments) == ARGUMENTS
            async with client.responses.stream(model="m", input="weather?", tools=tools) as stream:
                final = await stream.get_final_response()
            (streamed,) = final.output
            assert streamed.type == "function_call"
            assert json.loads(streamed.arguments) == ARGUMENTS
            result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
            turns: Any = [*whole.output, result]
            last = await client.responses.create(model="m", input=turns, tools=tools, max_output_tokens=2)
            assert last.output_text == " tok tok"

    run(story())


def test_openai_embeddings_take_a_permit_and_have_as_many_answers_as_inputs() -> None:
    async def story() -> None:
        async with served() as gate, openai_at(gate) as client:
            made = await client.embeddings.create(model="m", input=["one", "two", "three"])
            assert len(made.data) == 3
            assert made.data[0].embedding[0] == 1.0
            assert gate.outcomes() == {"good": 1}

    run(story())


def test_anthropic_messages_stream_and_come_whole() -> None:
    async def story() -> None:
        async with served() as gate, anthropic_at(gate) as client:
            whole = await client.messages.create(model="m", max_tokens=5, messages=ASKED)
            assert whole.stop_reason == "max_tokens"
            assert whole.usage.output_tokens == 5
            async with client.messages.stream(model="m", max_tokens=5, messages=ASKED) as stream:
                text = [piece async for piece in stream.text_stream]
                final = await stream.get_final_message()
            assert "".join(text) == " tok" * 5
            assert final.usage.output_tokens == 5
            assert gate.outcomes() == {"good": 2}
            assert gate.gateway.driver.snapshot().good_output_tokens == 10

    run(story())


def test_anthropic_messages_call_a_tool_and_go_on_with_its_result() -> None:
    tools: Any = [{"name": "weather", "description": "now", "input_schema": WEATHER}]

    async def story() -> None:
        async with served() as gate, anthropic_at(gate) as client:
            async with client.messages.stream(model="m", max_tokens=5, messages=ASKED, tools=tools) as stream:
                called = await stream.get_final_message()
            (block,) = called.content
            assert called.stop_reason == block.type == "tool_use"
            assert block.input == ARGUMENTS
            result = {"type": "tool_result", "tool_use_id": block.id, "content": "sunny"}
            messages = [
                *ASKED,
                {"role": "assistant", "content": [block.model_dump()]},
                {"role": "user", "content": [result]},
            ]
            last = await client.messages.create(model="m", max_tokens=2, messages=messages, tools=tools)
            (said,) = last.content
            assert said.type == "text"
            assert said.text == " tok tok"

    run(story())


def test_anthropic_counts_tokens_without_a_permit() -> None:
    async def story() -> None:
        async with served() as gate, anthropic_at(gate) as client:
            counted = await client.messages.count_tokens(model="m", messages=ASKED)
            assert counted.input_tokens == 5
            assert gate.outcomes() == {}

    run(story())


def test_anthropic_is_refused_in_its_own_words() -> None:
    async def story() -> None:
        async with served(max_inflight=1, max_queue=0) as gate, anthropic_at(gate) as client:
            async with client.messages.stream(model="m", max_tokens=4000, messages=ASKED) as busy:
                await anext(aiter(busy))
                with pytest.raises(anthropic.OverloadedError) as caught:
                    await client.messages.create(model="m", max_tokens=5, messages=ASKED)
            body: Any = caught.value.body
            assert body["error"]["type"] == "overloaded_error"
            assert body["request_id"] == caught.value.request_id
            with pytest.raises(anthropic.BadRequestError):
                await client.messages.create(model="m", max_tokens=-1, messages=ASKED)

    run(story())


def test_langchain_streams_and_calls_tools() -> None:
    langchain_openai = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    tool = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}

    def talk(url: str) -> None:
        """Use it as its users do, without a loop of one's own."""
        model = langchain_openai.ChatOpenAI(
            model="m", base_url=url + "/v1", api_key="sk-test", max_tokens=4, stream_usage=True
        )
        pieces = list(model.stream("hello"))
        assert "".join(piece.content for piece in pieces) == " tok" * 4
        assert sum((piece.usage_metadata or {}).get("output_tokens", 0) for piece in pieces) == 4
        assert model.bind_tools([tool]).invoke("weather?").tool_calls[0]["args"] == ARGUMENTS
        embeddings = langchain_openai.OpenAIEmbeddings(
            model="m", base_url=url + "/v1", api_key="sk-test", check_embedding_ctx_length=False
        )
        assert len(embeddings.embed_documents(["one", "two"])) == 2
        for client in (model.root_client, embeddings.client._client):
            client.close()

    async def story() -> None:
        async with served() as gate:
            await asyncio.to_thread(talk, gate.url)
            assert gate.outcomes() == {"good": 3}

    run(story())


def test_both_sdks_skip_the_signs_of_life_of_a_stream_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    write = KeptAlive._breathe

    def counted(waiting: KeptAlive) -> None:
        written.append(waiting.head.path)
        write(waiting)

    monkeypatch.setattr(KeptAlive, "_breathe", counted)
    door = DoorSettings(keep_alive_s={"/v1/messages": 0.003, "/v1/chat/completions": 0.003})

    async def wait(gate: Served) -> str:
        """Wait in the queue with both, behind somebody who takes a while, and return what both got."""
        async with openai_at(gate) as one, anthropic_at(gate) as two:

            async def first() -> str:
                stream = await one.chat.completions.create(
                    model="m", messages=ASKED, max_tokens=3, stream=True
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            async def second() -> str:
                async with two.messages.stream(model="m", max_tokens=3, messages=ASKED) as messages:
                    return "".join([piece async for piece in messages.text_stream])

            return "".join(await asyncio.gather(first(), second()))

    async def story() -> None:
        async with served(max_inflight=1, door=door) as gate, openai_at(gate) as client:
            busy = asyncio.create_task(
                client.chat.completions.create(model="m", messages=ASKED, max_tokens=200)
            )
            await until(lambda: gate.gateway.driver.snapshot().engines[0].running)
            assert await wait(gate) == " tok" * 6
            assert set(written) == {b"/v1/chat/completions", b"/v1/messages"}
            await busy

    run(story())


def test_both_sdks_raise_for_a_refusal_that_comes_after_a_sign_of_life() -> None:
    door = DoorSettings(
        keep_alive_s={"/v1/messages": 0.02, "/v1/chat/completions": 0.02, "/v1/responses": 0.02}
    )

    async def story() -> None:
        async with served(max_inflight=1, door=door, deadline_s=0.5) as gate, openai_at(gate) as client:
            busy = asyncio.create_task(
                client.chat.completions.create(model="m", messages=ASKED, max_tokens=8000)
            )
            await until(lambda: gate.gateway.driver.snapshot().engines[0].running)
            with pytest.raises(openai.APIError, match="deadline"):
                async for _ in await client.chat.completions.create(
                    model="m", messages=ASKED, max_tokens=1, stream=True
                ):
                    pass
            with pytest.raises(openai.APIError, match="deadline"):
                async for _ in await client.responses.create(model="m", input="hi", stream=True):
                    pass
            async with anthropic_at(gate) as other:
                with pytest.raises(anthropic.APIStatusError, match="deadline"):
                    async with other.messages.stream(model="m", max_tokens=1, messages=ASKED) as stream:
                        await stream.get_final_message()
            busy.cancel()

    run(story())

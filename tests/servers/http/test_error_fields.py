"""Errors of engines where no SDK looks for them: in a field beside the data, or in an answer with status 200."""

import asyncio
import json

import pytest

from gateway.harness import CHAT, DONE, ROLE, Asked, Script, chat, event, run, standing
from millgate.core.words import FailureKind

ERROR = (
    b'{"code":400,"message":"the request exceeds the available context size","type":"invalid_request_error"}'
)
FIELD = b"error: " + ERROR + b"\n\n"


def _begins_with(*pieces: bytes) -> Script:
    """Return an engine whose stream is these pieces alone."""

    async def script(asked: Asked) -> None:
        asked.open_stream()
        asked.send(*pieces)
        asked.end_stream()

    return script


def test_an_error_that_old_llama_cpps_put_beside_the_data_becomes_an_error_status() -> None:
    """ggml-org/llama.cpp#16109: `[DONE]` follows, and SDKs took the stream for a whole answer."""

    async def body() -> None:
        async with standing(_begins_with(FIELD, DONE)) as stand:
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


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("said", "status", "outcome"),
    [
        (b'{"error":{"message":"busy","code":429},"user_id":"u"}', 429, {"engine_failed": 1}),
        (b'{"error":{"message":"Provider returned error","code":502}}', 502, {"engine_failed": 1}),
        (b'{"error":{"message":"too long","code":400}}', 400, {"bad_request": 1}),
        (
            b'\n       \n\n{"error":{"message":"Provider returned error","code":502}}',
            502,
            {"engine_failed": 1},
        ),
        (b'{\n  "error": {\n    "code": 400\n  }\n}\n', 400, {"bad_request": 1}),
        (b'{"error":{"message":"litellm.RateLimitError","code":"429"}}', 429, {"engine_failed": 1}),
        (b'{"error":{"message":"litellm.BadRequestError","code":"400"}}', 400, {"bad_request": 1}),
        (b'{"error":{"message":"odd","code":"4290"}}', 502, {"engine_failed": 1}),
        (b'{"error":"Model is overloaded","error_type":"overloaded"}', 429, {"engine_failed": 1}),
        (b'{"error":"Input validation error","error_type":"validation"}', 422, {"bad_request": 1}),
        (
            b'{"error":"Request failed during generation","error_type":"generation"}',
            502,
            {"engine_failed": 1},
        ),
        (b'{"error":null,"choices":[]}', 200, {"good": 1}),
        (b'{"type":"error","error":{"type":"overloaded_error"}}', 529, {"engine_failed": 1}),
        (b'{"type": "error", "error": {"type": "invalid_request_error"}}', 400, {"bad_request": 1}),
    ],
)
def test_a_whole_answer_that_is_an_error_has_the_status_of_the_error(
    said: bytes, status: int, outcome: dict[str, int], stream: bool
) -> None:
    """OpenRouter answers 200 once it has asked a provider, and sends blank lines while that computes; SDKs raise nothing for it."""

    async def script(asked: Asked) -> None:
        asked.reply(said)

    async def body() -> None:
        async with standing(script) as stand:
            path = b"/v1/messages" if said.startswith(b'{"type"') else CHAT
            got = await stand.ask(chat(stream=stream), path)
            assert (got.status, got.body) == (status, said)
            await stand.settle()
            assert stand.outcomes() == outcome

    run(body())


def _litellm(code: str) -> bytes:
    said = {"message": "litellm.RateLimitError", "type": "None", "param": "None", "code": code}
    return json.dumps({"error": said}).encode()


def _tgi(kind: str) -> bytes:
    return json.dumps({"error": "in words", "error_type": kind}).encode()


@pytest.mark.parametrize(
    ("said", "status", "outcome"),
    [
        (_litellm("429"), 429, "engine_failed"),
        (_litellm("400"), 400, "bad_request"),
        (_tgi("overloaded"), 429, "engine_failed"),
        (_tgi("validation"), 422, "bad_request"),
        (_tgi("generation"), 502, "engine_failed"),
    ],
)
def test_the_first_event_of_a_stream_may_write_its_status_as_text_or_beside_its_error(
    said: bytes, status: int, outcome: str
) -> None:
    async def body() -> None:
        async with standing(_begins_with(b"data: " + said + b"\n\n")) as stand:
            got = await stand.ask(chat(stream=True))
            assert (got.status, got.body) == (status, said)
            await stand.settle()
            assert stand.outcomes() == {outcome: 1}

    run(body())


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        (
            b'{"error":"Request failed during generation: CUDA error","error_type":"generation"}',
            "engine_failed",
        ),
        (
            b'{"error":{"message":"Error retrieving tool list","type":"external_connector_error"}}',
            "bad_request",
        ),
    ],
    ids=["TGI", "OpenAI"],
)
def test_a_424_is_the_fault_of_an_engine_that_says_it_of_its_own_model(said: bytes, outcome: str) -> None:
    """Also text-embeddings-inference; OpenAI says it of the server of a tool, which the request names."""

    async def script(asked: Asked) -> None:
        asked.reply(said, 424)

    async def body() -> None:
        async with standing(script) as stand:
            got = await stand.ask(chat())
            assert (got.status, got.body) == (424, said)
            await stand.settle()
            assert stand.outcomes() == {outcome: 1}

    run(body())


def test_a_stream_of_messages_may_begin_with_an_error_of_the_other_dialect() -> None:
    """LiteLLM's proxy writes all errors as OpenAI does."""

    said = b'data: {"error":{"message":"slowly","type":"None","param":"None","code":"429"}}\n\n'

    async def body() -> None:
        async with standing(_begins_with(said)) as stand:
            got = await stand.ask(chat(stream=True, max_tokens=9), b"/v1/messages")
            assert (got.status, got.error) == (429, {"type": "rate_limit_error", "message": "slowly"})
            await stand.settle()
            assert dict(stand.lane.failures)[FailureKind.REFUSED] == 1

    run(body())

"""Answers of engines that pass by the processor: echoed as they come, and judged by what they say."""

import json
from typing import Any

import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest

from gateway.harness import run, until
from servers.extproc.envoys import BUFFERED, DUPLEX, NONE, STREAMED, standing
from servers.extproc.test_process import CHAT, DONE, RESPONSE, STREAM


def test_an_answer_that_envoy_holds_is_whole_also_before_trailers() -> None:
    async def scene() -> None:
        async with standing() as stand:
            talk = stand.open()
            await talk.head(modes=(BUFFERED, BUFFERED))
            await talk.told()
            await talk.body(CHAT)
            await talk.told()
            await talk.answer(200, [b'{"choices":[]}'], "application/json", ends=False)
            await until(lambda: stand.outcomes() == {"good": 1})
            assert stand.running == 0

    run(scene())


def test_an_answer_that_passes_by_is_echoed_and_read() -> None:
    events = [
        b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n',
        b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n',
        b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}\n\ndata: [DONE]\n\n',
    ]

    async def scene() -> None:
        async with standing() as stand:
            talk = stand.open()
            await talk.head(modes=(DUPLEX, DUPLEX))
            await talk.body(STREAM)
            await talk.told()
            await talk.told()

            assert await talk.answer(200, events) == events

            await until(lambda: stand.outcomes() == {"good": 1})
            assert stand.running == 0
            lane = stand.gateway.driver.snapshot().lanes[0]
            assert lane.slo.ttft is not None

    run(scene())


@pytest.mark.parametrize(
    ("status", "pieces", "outcome"),
    [
        (500, [b'{"error":{}}'], "engine_failed"),
        (422, [b'{"error":{}}'], "bad_request"),
        (200, [b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n'], "engine_failed"),
        (200, [b'data: {"choices":[{"delta":{},"finish_reason":"abort"}]}\n\n', DONE], "engine_failed"),
        (200, [b'data: {"choices":[{"delta":{},"finish_reason":"error"}]}\n\n', DONE], "engine_failed"),
        (200, [DONE], "engine_failed"),
        (
            200,
            [b'data: {"error":{"message":"no","code":500}}\n\n' + b": more\n\n" * 4_000, DONE],
            "engine_failed",
        ),
        (200, [b"data: " + b"x" * 600_000, b"x" * 600_000, b"\n\n", b": no end\n\n"], "engine_failed"),
    ],
)
def test_an_answer_that_fails_is_known_to_have_failed(status: int, pieces: list[bytes], outcome: str) -> None:
    async def scene() -> None:
        async with standing() as stand:
            talk = stand.open()
            await talk.head(modes=(DUPLEX, DUPLEX))
            await talk.body(STREAM)
            await talk.told()
            await talk.told()
            await talk.answer(status, pieces, "Text/Event-Stream" if status == 200 else "application/json")
            await until(lambda: stand.outcomes() == {outcome: 1})
            assert stand.running == 0

    run(scene())


@pytest.mark.parametrize("modes", [(DUPLEX, DUPLEX), (DUPLEX, NONE), (BUFFERED, BUFFERED)])
def test_a_client_is_not_told_that_its_key_is_wrong_where_the_engine_refuses_the_gates(
    modes: tuple[int, int],
) -> None:
    refused: list[str] = []

    async def scene() -> None:
        async with standing(api_key="sk-of-the-gate") as stand:
            stand.gateway.door.on_refused = lambda engine, _kind: refused.append(engine)
            talk = stand.open()
            await talk.head(modes=modes)
            if modes[0] == BUFFERED:
                await talk.told()
            await talk.body(CHAT)
            forwarded = await talk.told()
            if modes[1] == NONE:
                told = forwarded.dynamic_metadata.fields["millgate"].struct_value.fields["key_refused"]
                assert json.loads(told.string_value)["error"]["message"] == "the engine failed"
                return
            if modes[0] != BUFFERED:
                await talk.told()
            answer = ProcessingRequest()
            header = answer.response_headers.headers.headers.add()
            header.key, header.raw_value = ":status", b"401"
            await talk.call.write(answer)
            immediate = (await talk.told()).immediate_response
            assert immediate.status.code == 502
            assert json.loads(immediate.body)["error"]["message"] == "the engine failed"
            await until(stand.outcomes)
            assert stand.outcomes() == {"engine_failed": 1}
            assert refused == ["engine-0"]

    run(scene())


def test_a_client_whose_own_key_is_refused_reads_the_engines_words() -> None:
    async def scene() -> None:
        async with standing() as stand:
            talk = stand.open()
            await talk.head(modes=(DUPLEX, DUPLEX))
            await talk.body(CHAT)
            await talk.told()
            await talk.told()
            assert await talk.answer(401, [b'{"error":{}}'], "application/json") == [b'{"error":{}}']
            await until(stand.outcomes)
            assert stand.outcomes() == {"engine_failed": 1}

    run(scene())


def test_an_answer_that_says_that_the_work_goes_on_is_not_good() -> None:
    async def scene() -> None:
        async with standing() as stand:
            talk = stand.open()
            await talk.head(path="/v1/responses", modes=(DUPLEX, DUPLEX))
            await talk.body(RESPONSE)
            await talk.told()
            await talk.told()
            await talk.answer(200, [b'{"id":"resp_1","status":"queued","usage":null}'], "application/json")
            await until(lambda: stand.outcomes() == {"engine_failed": 1})

    run(scene())


def test_the_usage_of_a_long_answer_is_found_at_its_beginning() -> None:
    whole = b'{"usage":{"prompt_tokens":9,"completion_tokens":7},"x":"' + b"x" * 100_000 + b'"}'

    async def scene() -> None:
        async with standing() as stand:
            talk = stand.open()
            await talk.head(modes=(DUPLEX, DUPLEX))
            await talk.body(CHAT)
            await talk.told()
            await talk.told()
            await talk.answer(200, [whole[:50_000], whole[50_000:]], "application/json")
            await until(lambda: stand.outcomes() == {"good": 1})
            assert stand.gateway.driver.snapshot().good_output_tokens == 7

    run(scene())


def responses_events(size: int) -> list[bytes]:
    """Return a stream of the Responses API, whose last event repeats the whole answer."""
    output = [{"content": [{"text": "x" * size}]}]
    usage = {"input_tokens": 5, "output_tokens": 7}
    response = {"id": "resp_1", "output": output, "usage": usage}
    told: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": {"id": "resp_1"}}),
        *[("response.output_text.delta", {"delta": "a"})] * 3,
        ("response.completed", {"response": response}),
    ]
    return [f"event: {kind}\ndata: {json.dumps({'type': kind, **more})}\n\n".encode() for kind, more in told]


@pytest.mark.parametrize("piece_bytes", [1_000, 1 << 20])
@pytest.mark.parametrize("size", [1_000, 20_000, 900_000])
def test_a_stream_is_whole_by_its_last_event_however_long_that_is(size: int, piece_bytes: int) -> None:
    events = responses_events(size)
    last = [events[-1][at : at + piece_bytes] for at in range(0, len(events[-1]), piece_bytes)]

    async def scene() -> None:
        async with standing() as stand:
            talk = stand.open()
            await talk.head(path="/v1/responses", modes=(DUPLEX, DUPLEX))
            await talk.body(json.dumps({"model": "m", "input": "hi", "stream": True}).encode())
            await talk.told()
            await talk.told()

            assert b"".join(await talk.answer(200, [*events[:-1], *last])) == b"".join(events)

            await until(lambda: stand.outcomes() == {"good": 1})
            assert stand.running == 0
            assert [engine.up for engine in stand.gateway.driver.snapshot().engines] == [True]

    run(scene())


@pytest.mark.parametrize(("size", "outcome"), [(20_000, "good"), (0, "client_gone")])
def test_a_client_may_leave_once_it_has_the_last_event(size: int, outcome: str) -> None:
    events = responses_events(size)

    async def scene() -> None:
        async with standing() as stand:
            talk = stand.open()
            await talk.head(path="/v1/responses", modes=(DUPLEX, DUPLEX))
            await talk.body(json.dumps({"model": "m", "input": "hi", "stream": True}).encode())
            await talk.told()
            await talk.told()
            await talk.answer(200, events if size else events[:-1], ends=False)
            talk.call.cancel()
            await until(lambda: stand.outcomes() == {outcome: 1})

    run(scene())


def test_a_client_that_leaves_its_answer_is_known_to_have_left() -> None:
    async def scene() -> None:
        async with standing() as stand:
            talk = stand.open()
            await talk.head(modes=(DUPLEX, DUPLEX))
            await talk.body(STREAM)
            await talk.told()
            talk.call.cancel()
            await until(lambda: stand.outcomes() == {"client_gone": 1})
            await until(lambda: stand.running == 0)

    run(scene())


@pytest.mark.parametrize("mode", [BUFFERED, STREAMED, DUPLEX])
def test_an_answer_of_envoys_own_to_a_request_that_waits_goes_to_its_client(mode: int) -> None:
    """Its timeout was a 503 without a word: the stream was failed, as its answer came before ours."""

    async def scene() -> None:
        async with standing(max_inflight=1) as stand:
            first, second = stand.open(), stand.open()
            for each in (first, second):
                await each.head(modes=(DUPLEX, mode))
                await each.body(STREAM)
            await until(lambda: stand.queued == 1)

            assert len(await second.answer(504, [b"stream timeout"], "text/plain")) == 1

            await until(lambda: stand.queued == 0)
            assert stand.outcomes() == {"client_gone": 1}
            assert stand.running == 1

    run(scene())


def test_an_answer_of_envoys_own_to_a_body_that_it_may_not_hold_goes_to_its_client() -> None:
    async def scene() -> None:
        async with standing() as stand:
            talk = stand.open()
            await talk.head(modes=(BUFFERED, STREAMED))
            await talk.told()
            assert len(await talk.answer(413, [b"Payload Too Large"], "text/plain")) == 1
            assert (stand.running, stand.queued, stand.outcomes()) == (0, 0, {})

    run(scene())

"""Every surface at the door: whose words a refusal is in, what passes unchanged, and what never looks finished."""

import asyncio
import contextlib
import json
from typing import Any

import pytest

from gateway.harness import Asked, Stand, chat, run, standing, until
from millgate.core.settings import LaneSettings
from millgate.servers.http import DoorSettings

NO_QUEUE = LaneSettings("interactive", max_queue=0)
MESSAGES = b"/v1/messages"
RESPONSES = b"/v1/responses"
ANTHROPIC: Any = {"anthropic_version": "2023-06-01", "anthropic_beta": "tools-1"}


def message(**fields: Any) -> bytes:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **fields}
    return json.dumps(body).encode()


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def delta(text: str = "x") -> bytes:
    return event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


START = event("message_start", message={"id": "msg_1", "usage": {"input_tokens": 3, "output_tokens": 1}})
END = event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 4})
STOP = event("message_stop")


def streams(*events: bytes) -> Any:
    async def script(asked: Asked) -> None:
        asked.open_stream()
        for each in events:
            asked.send(each)
            await asyncio.sleep(0)
        asked.end_stream()

    return script


def replies(body: bytes, kind: str = "application/json", **headers: Any) -> Any:
    async def script(asked: Asked) -> None:
        asked.reply(body, kind=kind, **headers)

    return script


async def wait_for_ever(asked: Asked) -> None:
    await asked.hung_up(60)


def test_an_anthropic_stream_passes_byte_for_byte_and_is_counted() -> None:
    """INV-10; usage comes in two parts, and nothing is asked for that the API does not know."""
    whole = [START, event("ping"), *[delta()] * 4, END, STOP]

    async def body() -> None:
        async with standing(streams(*whole)) as stand:
            sent = message(stream=True)
            got = await stand.ask(sent, MESSAGES)
            assert (got.body, got.whole) == (b"".join(whole), True)
            assert (await stand.engine.next()).body == sent
            await stand.settle()
            assert stand.snapshot.good_output_tokens == 4

    run(body())


def test_anthropics_own_headers_pass_both_ways() -> None:
    answer = b'{"id":"msg_1","usage":{"input_tokens":3,"output_tokens":4}}'
    limits: Any = {"anthropic_ratelimit_requests_remaining": "7", "request_id": "theirs"}

    async def body() -> None:
        async with standing(replies(answer, **limits)) as stand:
            got = await stand.ask(message(), MESSAGES, **ANTHROPIC, x_api_key="sk-ant")
            asked = (await stand.engine.next()).headers
            assert asked["anthropic-version"] == "2023-06-01"
            assert asked["anthropic-beta"] == "tools-1"
            assert asked["x-api-key"] == "sk-ant"
            assert got.headers["anthropic-ratelimit-requests-remaining"] == "7"
            assert got.headers["request-id"] == got.headers["x-request-id"] != "theirs"

    run(body())


@pytest.mark.parametrize(
    ("path", "sent", "events"),
    [
        (MESSAGES, message(stream=True), [START, delta(), END]),
        (MESSAGES, message(stream=True), [START, delta()]),
        (RESPONSES, b'{"input":"hi","stream":true}', [event("response.output_text.delta", delta="x")]),
        (
            RESPONSES,
            b'{"input":"hi","stream":true}',
            [event("response.output_text.delta", delta="x"), b"data: [DONE]\n\n"],
        ),
        (b"/v1/chat/completions", chat(stream=True), [b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n']),
    ],
)
def test_a_stream_without_its_terminal_event_is_never_shown_as_finished(
    path: bytes, sent: bytes, events: list[bytes]
) -> None:
    async def body() -> None:
        async with standing(streams(*events)) as stand:
            got = await stand.ask(sent, path)
            assert not got.whole
            assert b'"error"' in got.body
            assert got.body.startswith(b"".join(events))
            await stand.settle()
            assert stand.outcomes() == {"engine_failed": 1}

    run(body())


def test_an_opening_is_not_a_first_token() -> None:
    release = asyncio.Event()

    async def script(asked: Asked) -> None:
        asked.open_stream()
        asked.send(START, event("ping"))
        await release.wait()
        asked.send(delta(), END, STOP)
        asked.end_stream()

    async def body() -> None:
        async with standing(script) as stand:
            client = await stand.client()
            client.ask(message(stream=True), MESSAGES)
            await stand.engine.next()
            assert all(step.stream and not step.stream.events for step in attempts(stand))
            release.set()
            await client.head()
            assert await client.chunk() == START + event("ping") + delta() + END + STOP
            await stand.settle()
            assert stand.outcomes() == {"good": 1}

    run(body())


def attempts(stand: Stand) -> list[Any]:
    return list(stand.gateway.door._ongoing.values())


@pytest.mark.parametrize("begun", [True, False])
def test_a_failed_response_is_counted_as_the_engines_failure(begun: bool) -> None:
    """It is passed on whole; where nothing was made yet its client gets a status, which an SDK tries again."""
    failed = event("response.failed", response={"id": "resp_1", "error": {"message": "no"}})
    item = [event("response.output_item.added", output_index=0)] if begun else []
    events = [event("response.created", response={"id": "resp_1"}), *item, failed]

    async def body() -> None:
        async with standing(streams(*events)) as stand:
            got = await stand.ask(b'{"input":"hi","stream":true}', RESPONSES)
            assert (got.status, got.whole) == (200 if begun else 502, True)
            assert got.body == b"".join(events) if begun else got.json()["error"]["message"] == "no"
            await stand.settle()
            assert stand.outcomes() == {"engine_failed": 1}

    run(body())


def test_an_application_that_shows_an_image_while_it_is_made_gets_events_of_megabytes() -> None:
    image = "iVBO" * 750_000
    output = [{"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": image}]
    counts = {"input_tokens": 30, "output_tokens": 1700}
    sent = (
        event("response.created", response={"id": "resp_1", "status": "in_progress"}),
        event("response.image_generation_call.partial_image", partial_image_index=0, partial_image_b64=image),
        event("response.output_item.done", output_index=0, item=output[0]),
        event("response.completed", response={"id": "resp_1", "output": output, "usage": counts}),
    )

    async def body() -> None:
        async with standing(streams(*sent)) as stand:
            asked = b'{"model":"m","stream":true,"input":"a cat","tools":[{"type":"image_generation"}]}'
            got = await stand.ask(asked, RESPONSES)
            assert (got.status, got.body == b"".join(sent), got.whole) == (200, True, True)
            await stand.settle()
            assert stand.outcomes() == {"good": 1}
            assert stand.snapshot.good_output_tokens == 1700

    run(body())


def test_an_error_before_anything_else_is_a_status() -> None:
    error = event("error", error={"type": "overloaded_error", "message": "Overloaded"})

    async def body() -> None:
        async with standing(streams(event("ping"), error)) as stand:
            got = await stand.ask(message(stream=True), MESSAGES)
            assert got.status == 529
            assert got.error["type"] == "overloaded_error"

    run(body())


def test_a_response_is_never_sent_twice_on_a_dead_connection_unless_nothing_is_kept() -> None:
    async def script(asked: Asked) -> None:
        if b"first" in asked.body:
            asked.reply(b'{"id":"resp_1"}')
        else:
            asked.cut()

    async def body() -> None:
        for sent, times in ((b'{"input":"hi"}', 1), (b'{"input":"hi","store":false}', 2)):
            async with standing(script) as stand:
                assert (await stand.ask(b'{"input":"first"}', RESPONSES)).status == 200
                got = await stand.ask(sent, RESPONSES)
                assert got.status == 502
                assert [each.body for each in stand.engine.asked[1:]] == [sent] * times

    run(body())


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "kind"),
    [
        (b"POST", b"/v1/messages/batches", {}, 404, "not_found_error"),
        (b"GET", b"/v1/nothing", ANTHROPIC, 404, "not_found_error"),
        (b"GET", MESSAGES, {}, 405, "invalid_request_error"),
        (b"POST", MESSAGES, {"content_type": "text/plain"}, 415, "invalid_request_error"),
        (b"POST", MESSAGES, {"content_encoding": "gzip"}, 415, "invalid_request_error"),
        (b"POST", MESSAGES, {"content_length": "99000000"}, 413, "request_too_large"),
        (b"POST", MESSAGES, {"expect": "200-maybe"}, 417, "invalid_request_error"),
        (b"POST", MESSAGES, {"x_millgate_deadline_ms": "soon"}, 400, "invalid_request_error"),
    ],
)
def test_a_complaint_comes_in_anthropics_words(
    method: bytes, path: bytes, headers: Any, status: int, kind: str
) -> None:
    async def body() -> None:
        async with standing() as stand:
            got = await stand.ask(message(), path, method, **headers)
            said = got.json()
            if status != 417:  # refused before the head is taken for a request of anybody
                assert (said["type"], said["error"]["type"]) == ("error", kind)
                assert said["request_id"] == got.headers["request-id"] == got.headers["x-request-id"]
            assert got.status == status
            assert not stand.engine.asked

    run(body())


def test_bad_input_and_refusals_come_in_anthropics_words() -> None:
    async def body() -> None:
        async with standing(wait_for_ever, max_inflight=1, lane=NO_QUEUE) as stand:
            bad = await stand.ask(message(max_tokens=-1), MESSAGES)
            assert (bad.status, bad.error["type"]) == (400, "invalid_request_error")
            assert bad.error["message"].startswith("max_tokens")
            busy = await stand.client()
            busy.ask(message(), MESSAGES)
            await stand.engine.next()
            got = await stand.ask(message(stream=True), MESSAGES)
            assert (got.status, got.error["type"]) == (529, "overloaded_error")
            assert got.json()["request_id"] == got.headers["request-id"]
            assert got.headers["x-millgate-reason"] == "saturated"

    run(body())


@pytest.mark.parametrize(
    ("path", "sent", "answer"),
    [
        (b"/v1/embeddings", b'{"input":["a","b"]}', b'{"data":[],"usage":{"prompt_tokens":2}}'),
        (b"/v2/rerank", b'{"documents":["a"]}', b'{"results":[]}'),
        (b"/score", b'{"text_1":"a","text_2":"b"}', b'{"data":[]}'),
        (b"/rerank", b'{"texts":["a"]}', b'[{"index":0,"score":0.5}]'),
        (b"/pooling", b'{"input":["a","b"]}', b'{"data":[],"usage":{"prompt_tokens":2}}'),
        (b"/classify", b'{"input":"a"}', b'{"data":[{"label":"safe"}],"usage":{"prompt_tokens":1}}'),
        (b"/v2/embed", b'{"texts":["a","b"]}', b'{"meta":{"billed_units":{"input_tokens":2}}}'),
    ],
)
def test_what_only_reads_takes_a_permit_and_ends_good(path: bytes, sent: bytes, answer: bytes) -> None:
    async def body() -> None:
        async with standing(replies(answer)) as stand:
            got = await stand.ask(sent, path)
            assert (got.status, got.body) == (200, answer)
            await stand.settle()
            assert stand.outcomes() == {"good": 1}
            assert stand.snapshot.good_output_tokens == 0

    run(body())


def test_a_batch_of_three_conversations_takes_three_streams() -> None:
    batch = (
        b'{"messages":[[{"role":"user","content":"a"}],[{"role":"user","content":"b"}],[{"role":"user"}]]}'
    )

    async def body() -> None:
        async with standing(wait_for_ever, max_inflight=4) as stand:
            first = await stand.client()
            first.ask(batch, b"/v1/chat/completions/batch")
            asked = await stand.engine.next()
            assert asked.body == batch
            assert stand.snapshot.engines[0].running == 3
            second = await stand.ask(
                b'{"messages":[' + b",".join([b'[{"role":"user"}]'] * 5) + b"]}",
                b"/v1/chat/completions/batch",
            )
            assert (second.status, second.headers["x-millgate-reason"]) == (413, "too_large")

    run(body())


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (b"/v1/chat/completions", {"messages": [{"role": "user"}], "n_cmpl": 3}),
        (b"/v1/completions", {"prompt": "a", "n": 1, "n_cmpl": 3}),
        (b"/v1/completions", {"prompt": "a", "prompt_embeds": ["AAAA"] * 2}),
        (b"/v1/responses", {"input": "a", "n_cmpl": 3}),
        (b"/v1/embeddings", {"content": ["a"] * 3}),
    ],
)
def test_inv_2_every_name_for_several_sequences_is_counted(path: bytes, fields: dict[str, Any]) -> None:
    async def body() -> None:
        async with standing(wait_for_ever) as stand:
            client = await stand.client()
            client.ask(json.dumps({"model": "m", **fields}).encode(), path)
            await stand.engine.next()
            assert stand.snapshot.engines[0].running == 3

    run(body())


@pytest.mark.parametrize(
    "path", [b"/tokenize", b"/detokenize", b"/v1/messages/count_tokens", b"/v1/responses/input_tokens"]
)
def test_counting_tokens_passes_without_a_permit(path: bytes) -> None:
    async def body() -> None:
        async with standing(replies(b'{"count":1}')) as stand:
            got = await stand.ask(b'{"prompt":"a"}', path)
            asked = await stand.engine.next()
            assert (got.status, asked.body) == (200, b'{"prompt":"a"}')
            assert asked.line.startswith(b"POST " + path)
            assert stand.lane.arrived == 0

    run(body())


FORM = (
    b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n\x00\xff\r\n'
    b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nwhisper\r\n--b--\r\n'
)


@pytest.mark.parametrize("kind", ["application/json", "text/plain; charset=utf-8", "application/x-subrip"])
def test_a_recording_passes_as_it_is_and_its_text_comes_back_in_any_kind(kind: str) -> None:
    async def body() -> None:
        async with standing(replies(b'{"text":"hi"}', kind)) as stand:
            got = await stand.ask(
                FORM, b"/v1/audio/transcriptions", content_type="multipart/form-data; boundary=b"
            )
            assert (got.status, got.body) == (200, b'{"text":"hi"}')
            asked = await stand.engine.next()
            assert (asked.body, asked.headers["content-type"]) == (FORM, "multipart/form-data; boundary=b")
            await stand.settle()
            assert stand.outcomes() == {"good": 1}

    run(body())


@pytest.mark.parametrize(
    ("sent", "kind", "status"),
    [
        (FORM, "application/json", 415),
        (FORM, "multipart/form-data", 415),
        (b"no form", "multipart/form-data; boundary=b", 400),
    ],
)
def test_what_is_no_form_is_not_dispatched(sent: bytes, kind: str, status: int) -> None:
    async def body() -> None:
        async with standing() as stand:
            got = await stand.ask(sent, b"/v1/audio/transcriptions", content_type=kind)
            assert (got.status, got.error["type"]) == (status, "invalid_request_error")
            assert not stand.engine.asked

    run(body())


def test_sound_comes_back_whole_and_a_page_of_html_does_not() -> None:
    async def body() -> None:
        for kind, status in (("audio/mpeg", 200), ("text/html", 502)):
            async with standing(replies(b"\x00\xff" * 50_000, kind)) as stand:
                got = await stand.ask(b'{"model":"tts","input":"hi"}', b"/v1/audio/speech")
                assert got.status == status

    run(body())


# ---- signs of life


def kept_alive(*paths: bytes) -> DoorSettings:
    return DoorSettings(keep_alive_s={path.decode(): 0.02 for path in paths})


@pytest.mark.parametrize(
    ("path", "sent", "sign"),
    [
        (b"/v1/chat/completions", chat(stream=True), b": waiting\n\n"),
        (MESSAGES, message(stream=True), b'event: ping\ndata: {"type": "ping"}\n\n'),
        (RESPONSES, b'{"input":"hi","stream":true}', b": waiting\n\n"),
    ],
)
def test_a_queued_stream_shows_signs_of_life_and_its_refusal_comes_as_an_event(
    path: bytes, sent: bytes, sign: bytes
) -> None:
    lane = LaneSettings("interactive", ttft_slo_s=0.5, deadline_s=0.5)

    async def body() -> None:
        async with standing(wait_for_ever, max_inflight=1, lane=lane, door=kept_alive(path)) as stand:
            busy = await stand.client()
            busy.ask(chat(max_tokens=1))
            await stand.engine.next()
            client = await stand.client()
            client.ask(sent, path)
            got = await client.head()
            assert (got.status, got.headers["content-type"][:17]) == (200, "text/event-stream")
            assert got.headers["request-id"]
            said = b""
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while piece := await client.chunk():
                    said += piece
                pytest.fail("the stream ended as if it were finished")
            assert said.startswith(sign)
            assert b'"error"' in said.replace(sign, b"")
            assert stand.outcomes() == {"yielded": 1}
            busy.leave()

    run(body())


def test_signs_of_life_end_with_the_first_token() -> None:
    release = asyncio.Event()

    async def script(asked: Asked) -> None:
        asked.open_stream()
        asked.send(START)
        await release.wait()
        asked.send(delta(), END, STOP)
        asked.end_stream()

    async def body() -> None:
        async with standing(script, door=kept_alive(MESSAGES)) as stand:
            client = await stand.client()
            client.ask(message(stream=True), MESSAGES)
            await client.head()
            said = await client.chunk()
            while b"event: ping" not in said:
                said += await client.chunk()
            release.set()
            while piece := await client.chunk():
                said += piece
            assert said.replace(event("ping"), b"") == START + delta() + END + STOP
            assert said.endswith(delta() + END + STOP)
            await until(lambda: stand.outcomes() == {"good": 1})

    run(body())


def test_without_the_setting_a_queued_client_hears_nothing() -> None:
    async def body() -> None:
        async with standing(wait_for_ever, door=kept_alive(MESSAGES)) as stand:
            client = await stand.client()
            client.ask(chat(stream=True))
            await stand.engine.next()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.head(), 0.1)

    run(body())

"""One request over two engines, over sockets: what each of them is sent, and what the client sees."""

import asyncio
import json
from typing import Any

import pytest

from gateway.harness import CHAT, DONE, ROLE, Answer, Asked, answer, event, run, until
from gateway.two_engines import LONG, TwoEngines, ask, embedded, scripted
from millgate.core.words import Outcome

PARAMS = {
    "do_remote_prefill": True,
    "remote_block_ids": [[1, 2]],
    "remote_request_id": "p-1",
    "new_in_2027": 1.5,
}


def prompt_read(cached_tokens: int | None = None, finish: str = "length", params: Any = PARAMS) -> bytes:
    body = json.loads(answer("x", 1, finish))
    body["usage"]["prompt_tokens"] = 350
    if cached_tokens is not None:
        body["usage"]["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    if params is not None:
        body["kv_transfer_params"] = params
    return json.dumps(body).encode()


async def reads(asked: Asked) -> None:
    asked.reply(prompt_read(16))


async def writes(asked: Asked) -> None:
    usage = {
        "prompt_tokens": 350,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 349},
    }
    if json.loads(asked.body).get("stream"):
        asked.open_stream()
        asked.send(ROLE, event("hel"), event("lo", finish="stop"))
        last = json.dumps({"id": "c", "choices": [], "usage": usage}, separators=(",", ":")).encode()
        asked.send(b"data: " + last[:40], last[40:] + b"\n\n", DONE)
        asked.end_stream()
    else:
        body = json.loads(answer())
        asked.reply(json.dumps({**body, "usage": usage}).encode())


async def asking(two: TwoEngines, body: bytes, path: bytes = CHAT) -> Answer:
    client = await two.client()
    client.ask(body, path)
    found = await client.answer()
    client.leave()
    return found


def asked_for(field: str) -> bytes:
    return ask()[:-1] + f', "{field}": {json.dumps(PARAMS)}}}'.encode()


def cached_of(found: Answer) -> Any:
    text = found.body.decode()
    if found.body.startswith(b"data:"):
        text = next(line for line in text.split("\n\n") if '"usage":{' in line).removeprefix("data: ")
    return json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_each_engine_gets_its_part(stream: bool) -> None:
    async def story() -> None:
        async with scripted(reads, writes) as (two, first, second):
            body = ask(
                stream=stream, max_completion_tokens=8, min_tokens=3, stream_options={"include_usage": True}
            )
            found = await asking(two, body)
            assert found.status == 200
            assert found.whole
            (one,), (other,) = first.asked, second.asked
            told = json.loads(one.body)
            assert told["kv_transfer_params"] == {"do_remote_decode": True, "do_remote_prefill": False}
            assert (told["stream"], told["max_completion_tokens"]) == (False, 1)
            assert not {"max_tokens", "min_tokens", "stream_options"} & set(told)
            assert other.body == body[:-1] + b',"kv_transfer_params":' + json.dumps(PARAMS).encode() + b"}"
            assert (
                one.headers["x-request-id"] == other.headers["x-request-id"] == found.headers["x-request-id"]
            )
            await two.idle()

    run(story())


@pytest.mark.parametrize("stream", [False, True])
def test_the_client_is_told_what_the_first_engine_had_cached(stream: bool) -> None:
    async def story() -> None:
        async with scripted(reads, writes) as (two, _first, _second):
            found = await asking(two, ask(stream=stream, stream_options={"include_usage": True}))
            assert cached_of(found) == 16
            assert b"hel" in found.body

    run(story())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/completions"])
def test_two_embedded_engines_share_requests(path: bytes, stream: bool) -> None:
    async def story() -> None:
        async with embedded() as (two, first, second):
            body = ask(stream=stream) if path == CHAT else _completion(stream=stream)
            for _ in range(3):
                found = await asking(two, body, path)
                assert (found.status, found.whole) == (200, True)
                assert found.body.count(b" tok") == 8
                assert b"kv_transfer_params" not in found.body
            assert first.application.meters.kv_given == second.application.meters.kv_taken == 3
            assert two.legs().fetched == 3
            await two.idle()
            lane = two.gateway.driver.snapshot().lanes[0]
            assert dict(lane.outcomes)[Outcome.GOOD] == 3

    run(story())


def _completion(**more: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": LONG, "max_tokens": 8, **more}).encode()


@pytest.mark.parametrize(
    "more",
    [
        {"n": 2},
        {"prompt_logprobs": 1},
        {"echo": True},
        {"best_of": 2, "n": 1},
        {"use_beam_search": True},
        {"max_tokens": 1},
    ],
    ids=lambda more: next(iter(more)),
)
def test_what_vllm_cannot_hand_over_is_answered_by_one_engine(more: dict[str, Any]) -> None:
    async def story() -> None:
        async with scripted(reads, writes) as (two, first, second):
            assert (await asking(two, _completion(**more), b"/v1/completions")).status == 200
            assert not first.asked
            assert b"kv_transfer_params" not in second.asked[0].body

    run(story())


def test_several_prompts_in_one_body_are_answered_by_one_engine() -> None:
    async def story() -> None:
        async with scripted(reads, writes) as (two, first, _second):
            body = json.dumps({"model": "m", "prompt": [LONG, LONG], "max_tokens": 8}).encode()
            assert (await asking(two, body, b"/v1/completions")).status == 200
            assert not first.asked

    run(story())


def test_the_events_of_a_stream_come_one_by_one_in_whatever_letter_case_it_is_one() -> None:
    release = asyncio.Event()

    async def begins(asked: Asked) -> None:
        asked.open_stream("Text/Event-Stream")
        asked.send(ROLE, event("hel"))
        await release.wait()
        asked.send(event("lo", finish="stop"), DONE)
        asked.end_stream()

    async def story() -> None:
        async with scripted(reads, begins) as (two, _first, _second):
            client = await two.client()
            client.ask(ask(stream=True))
            assert (await client.head()).status == 200
            assert b"hel" in await client.chunk()
            release.set()
            while piece := await client.chunk():
                last = piece
            assert last.endswith(DONE)

    run(story())


def test_a_short_prompt_is_answered_by_one_engine() -> None:
    async def story() -> None:
        async with scripted(reads, writes) as (two, first, _second):
            assert (await asking(two, ask("hi"))).status == 200
            assert not first.asked

    run(story())


@pytest.mark.parametrize("field", ["kv_transfer_params", "bootstrap_room", "session_params"])
def test_a_client_cannot_say_whose_cache_is_read(field: str) -> None:
    async def story() -> None:
        async with scripted(reads, writes) as (two, first, second):
            found = await asking(two, asked_for(field))
            assert (found.status, found.error["code"]) == (400, "reserved_field")
            assert not first.asked + second.asked

    run(story())


def test_where_an_engine_does_not_know_stream_options_it_is_asked_alone_without_them() -> None:
    async def refuses(asked: Asked) -> None:
        if b"stream_options" in asked.body:
            asked.reply(b'{"error":{"message":"stream_options: unknown"}}', 400)
        else:
            await writes(asked)

    async def story() -> None:
        async with scripted(reads, refuses) as (two, first, second):
            found = await asking(two, ask(stream=True))
            assert (found.status, found.whole) == (200, True)
            assert len(first.asked) == 1
            assert second.asked[-1].body == ask(stream=True)
            await until(lambda: two.seen("writes").running == 0)

    run(story())


def test_events_may_end_with_carriage_returns() -> None:
    async def streams(asked: Asked) -> None:
        asked.open_stream()
        for piece in (ROLE, event("hel"), event("lo", finish="stop"), DONE):
            asked.send(piece.replace(b"\n", b"\r\n"))
            await asyncio.sleep(0.01)
        asked.end_stream()

    async def story() -> None:
        async with scripted(reads, streams) as (two, _first, _second):
            client = await two.client()
            client.ask(ask(stream=True))
            await client.head()
            assert b"[DONE]" not in await client.chunk(), "events go on as they come"

    run(story())


def test_ten_at_once_all_end_and_leave_nothing_behind() -> None:
    async def story() -> None:
        async with embedded() as (two, _first, _second):
            found = await asyncio.gather(*[asking(two, ask(stream=bool(n % 2))) for n in range(10)])
            assert [(each.status, each.body.count(b" tok")) for each in found] == [(200, 8)] * 10
            await two.idle()

    run(story())

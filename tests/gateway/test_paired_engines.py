"""One request on two of SGLang's engines at once, over sockets: what each of them is sent, and what the client sees."""

import asyncio
import json
from typing import Any

import pytest

from gateway.harness import CHAT, Asked, run
from gateway.paired_engines import ROOM_PORT, embedded, scripted
from gateway.test_two_engines import asked_for, asking, cached_of, prompt_read, writes
from gateway.two_engines import LONG, ask
from millgate.core.decisions import Admit
from millgate.core.words import Outcome
from millgate.servers.admin.answers import ExplainQuery

COMPLETIONS = b"/v1/completions"
STREAMS = pytest.mark.parametrize("stream", [False, True])
ROOMS = ("bootstrap_host", "bootstrap_port", "bootstrap_room")


async def reads(asked: Asked) -> None:
    asked.reply(prompt_read(16, params=None))


def met_in(asked: Asked) -> list[Any]:
    told = json.loads(asked.body)
    return [told[field] for field in ROOMS]


@STREAMS
def test_both_engines_get_the_request_as_it_came_and_a_room(stream: bool) -> None:
    async def story() -> None:
        async with scripted(reads=reads, writes=writes) as (two, engines):
            body = ask(stream=stream, min_tokens=3, stream_options={"include_usage": True})
            found = await asking(two, body)
            assert (found.status, found.whole) == (200, True)
            (one,), (other,) = engines["reads"].asked, engines["writes"].asked
            assert one.body == other.body
            assert one.body.startswith(body[:-1] + b',"bootstrap_host":"127.0.0.1","bootstrap_port":')
            host, port, room = met_in(one)
            assert (host, port) == ("127.0.0.1", ROOM_PORT)
            assert 0 <= room < 2**63
            assert one.headers["x-request-id"] == other.headers["x-request-id"]
            assert cached_of(found) == 349, "the answer's own usage, as it came"
            await two.idle()
            assert two.legs()[:4] == (1, 1, 0, 0)

    run(story())


def test_no_two_attempts_meet_in_one_room() -> None:
    async def story() -> None:
        async with scripted(reads=reads, writes=writes) as (two, engines):
            for _ in range(5):
                await asking(two, ask())
            rooms = [met_in(each)[2] for each in engines["reads"].asked]
            assert len({*rooms}) == 5

    run(story())


@pytest.mark.parametrize(
    ("path", "more", "sequences"),
    [
        (CHAT, {"messages": [{"role": "user", "content": LONG}], "n": 3}, 3),
        (COMPLETIONS, {"prompt": [LONG, LONG]}, 2),
        (COMPLETIONS, {"prompt": [LONG, LONG], "n": 2}, 4),
    ],
)
def test_each_sequence_has_a_room_of_its_own(path: bytes, more: dict[str, Any], sequences: int) -> None:
    async def story() -> None:
        async with scripted(reads=reads, writes=writes) as (two, engines):
            body = json.dumps({"model": "m", "max_tokens": 8, **more}).encode()
            assert (await asking(two, body, path)).status == 200
            hosts, ports, rooms = met_in(engines["writes"].asked[0])
            assert hosts == ["127.0.0.1"] * sequences
            assert ports == [ROOM_PORT] * sequences
            assert len({*rooms}) == sequences
            assert met_in(engines["reads"].asked[0])[2] == rooms
            await two.idle()

    run(story())


@STREAMS
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("content", ["hi", LONG])
def test_two_embedded_engines_share_requests(path: bytes, content: str, stream: bool) -> None:
    async def story() -> None:
        async with embedded() as (two, first, second):
            prompt = {"prompt": content} if path == COMPLETIONS else {}
            body = ask(content, stream=stream, **prompt)
            for _ in range(3):
                found = await asking(two, body, path)
                assert (found.status, found.whole) == (200, True)
                assert found.body.count(b" tok") == 8
                assert b"bootstrap" not in found.body
            assert first.application.meters.kv_given == second.application.meters.kv_taken == 3
            assert two.legs().fetched == 3
            await two.idle()
            lane = two.gateway.driver.snapshot().lanes[0]
            assert dict(lane.outcomes)[Outcome.GOOD] == 3

    run(story())


def test_three_answers_of_embedded_engines_come_in_one() -> None:
    async def story() -> None:
        async with embedded() as (two, _first, second):
            found = await asking(two, ask(n=3))
            assert [found.status, len(found.json()["choices"])] == [200, 3]
            assert second.application.meters.kv_taken == 1
            await two.idle()

    run(story())


def test_ten_at_once_all_end_and_leave_nothing_behind() -> None:
    async def story() -> None:
        async with embedded() as (two, _first, _second):
            found = await asyncio.gather(*[asking(two, ask(stream=bool(n % 2))) for n in range(10)])
            assert [(each.status, each.body.count(b" tok")) for each in found] == [(200, 8)] * 10
            await two.idle()
            assert two.legs()[:4] == (10, 10, 0, 0)

    run(story())


@pytest.mark.parametrize("field", ROOMS)
def test_a_client_cannot_say_where_engines_meet(field: str) -> None:
    async def story() -> None:
        async with scripted(reads=reads, writes=writes) as (two, engines):
            found = await asking(two, asked_for(field))
            assert (found.status, found.error["code"]) == (400, "reserved_field")
            assert not engines["reads"].asked + engines["writes"].asked

    run(story())


def test_a_path_on_which_sglang_knows_no_rooms_is_refused_at_once() -> None:
    async def story() -> None:
        async with scripted(reads=reads, writes=writes) as (two, engines):
            found = await asking(two, b'{"model":"m","input":"hi"}', b"/v1/responses")
            assert found.status == 503
            assert not engines["reads"].asked + engines["writes"].asked

    run(story())


def test_where_an_engine_does_not_know_stream_options_both_are_asked_again_in_a_new_room() -> None:
    async def refuses(asked: Asked) -> None:
        if b"stream_options" in asked.body:
            asked.reply(b'{"error":{"message":"stream_options: unknown"}}', 400)
        else:
            await writes(asked)

    async def story() -> None:
        async with scripted(reads=reads, writes=refuses) as (two, engines):
            found = await asking(two, ask(stream=True))
            assert (found.status, found.whole) == (200, True)
            first, second = engines["writes"].asked
            assert met_in(first)[2] != met_in(second)[2]
            assert met_in(engines["reads"].asked[-1]) == met_in(second)
            await two.idle()

    run(story())


def test_an_imagined_request_is_explained_as_one_on_two_engines() -> None:
    async def story() -> None:
        async with scripted(reads=reads, writes=writes) as (two, _engines):
            told = two.gateway.driver.explain(ExplainQuery().arrival()).decision
            assert isinstance(told, Admit)
            assert [leg.engine for leg in told.legs] == ["writes", "reads"]

    run(story())


def test_a_body_above_a_megabyte_meets_too() -> None:
    async def story() -> None:
        async with scripted(reads=reads, writes=writes) as (two, engines):
            found = await asking(two, ask("word " * 250_000))
            assert found.status == 200
            assert met_in(engines["reads"].asked[0]) == met_in(engines["writes"].asked[0])
            await two.idle()

    run(story())

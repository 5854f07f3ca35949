"""Requests for embeddings that share calls, over sockets: who gets what, who fails, and what the engine sees."""

import asyncio
import json
from typing import Any

import pytest

from gateway.harness import Answer, Asked, Client, Script, Stand, run, until
from gateway.stand import core_settings, gating
from millgate.servers.http import CoalescingSettings, DoorSettings

PATH = b"/v1/embeddings"
DOOR = DoorSettings(
    coalesce={"interactive": CoalescingSettings(window_s=5.0, most_inputs=4)}, first_lane="interactive"
)
CORE = core_settings(max_inflight=64)


def ask(stand: Stand, given: Any, **more: Any) -> "asyncio.Task[Answer]":
    headers = more.pop("headers", {})
    return asyncio.create_task(stand.ask(request(given, **more), PATH, **headers))


def texts(asked: Asked) -> list[str]:
    given = json.loads(asked.body)["input"]
    return given if isinstance(given, list) else [given]


def request(given: Any, **more: Any) -> bytes:
    return json.dumps({"model": "m", "input": given, **more}).encode()


async def gathers(stand: Stand, text: str) -> Client:
    """Return a client whose request for one text has joined those that gather."""
    before, client = stand.gateway.door.ongoing, await stand.client()
    client.ask(request(text), PATH)
    await until(lambda: stand.gateway.door.ongoing == before + 1)
    return client


class Pooler:
    """An engine that answers when it is told to, and refuses every batch with a bad text in it."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.status = 200
        self.fields: dict[str, Any] = {}

    async def script(self, asked: Asked) -> None:
        await self.go.wait()
        given = texts(asked)
        if self.status != 200 or "bad" in given:
            asked.reply(b'{"error":{"message":"no"}}', self.status if self.status != 200 else 400)
            return
        rows = [
            {"object": "embedding", "index": place, "embedding": [len(str(text))]}
            for place, text in enumerate(given)
        ]
        usage = {"prompt_tokens": 10 * len(given), "total_tokens": 10 * len(given)}
        body = json.dumps({"object": "list", "data": rows, "model": "m", "usage": usage}).encode()
        asked.reply(body, **self.fields)


async def gathered(stand: Stand, engine: Pooler, *last: Any) -> list[Answer]:
    """Occupy two calls, let these gather behind them, and return the answers to these."""
    first = [ask(stand, "one"), ask(stand, "two")]
    await until(lambda: len(stand.engine.asked) == 2)
    tasks = [ask(stand, each) for each in last]
    await until(lambda: stand.gateway.door.ongoing == 2 + len(last))
    engine.go.set()
    assert [answer.status for answer in await asyncio.gather(*first)] == [200, 200]
    return list(await asyncio.gather(*tasks))


def engine_calls(stand: Stand) -> list[list[str]]:
    return [texts(asked) for asked in stand.engine.asked[2:]]


def scene(script: Script, settings: DoorSettings = DOOR) -> Any:
    return gating(script, core=CORE, door=settings)


def test_what_gathers_behind_two_calls_is_one_call_and_every_owner_gets_its_own() -> None:
    async def test() -> None:
        engine = Pooler()
        async with scene(engine.script) as stand:
            answers = await gathered(stand, engine, "a", ["bb", "ccc"])
            assert engine_calls(stand) == [["a", "bb", "ccc"]]
            read = [json.loads(answer.body) for answer in answers]
            assert [[row["embedding"] for row in each["data"]] for each in read] == [[[1]], [[2], [3]]]
            assert sum(each["usage"]["prompt_tokens"] for each in read) == 30
            assert len({answer.headers["x-request-id"] for answer in answers}) == 2
            await stand.settle()
            assert stand.outcomes() == {"good": 4}
            assert stand.gateway.door.shared.merged == 2

    run(test())


def test_a_full_batch_goes_without_waiting_for_anything() -> None:
    async def test() -> None:
        engine = Pooler()
        async with scene(engine.script) as stand:
            tasks = [ask(stand, "x") for _ in range(2)]
            await until(lambda: len(stand.engine.asked) == 2)
            tasks += [ask(stand, "x") for _ in range(4)]
            await until(lambda: len(stand.engine.asked) == 3)
            engine.go.set()
            await asyncio.gather(*tasks)
            assert engine_calls(stand) == [["x"] * 4]

    run(test())


def test_a_bad_text_fails_alone() -> None:
    async def test() -> None:
        engine = Pooler()
        async with scene(engine.script) as stand:
            answers = await gathered(stand, engine, "a", "bad", "b")
            assert [answer.status for answer in answers] == [200, 400, 200]
            assert sorted(engine_calls(stand)) == [["a"], ["a", "bad", "b"], ["b"], ["bad"]]
            await stand.settle()
            assert stand.outcomes() == {"good": 4, "bad_request": 1}

    run(test())


def test_a_refusal_or_a_failure_of_the_engine_is_every_owner_s() -> None:
    async def test(status: int) -> None:
        engine = Pooler()
        async with scene(engine.script) as stand:
            first = [ask(stand, "one"), ask(stand, "two")]
            await until(lambda: len(stand.engine.asked) == 2)
            tasks = [ask(stand, each) for each in "ab"]
            await until(lambda: stand.gateway.door.ongoing == 4)
            engine.status = status
            engine.go.set()
            answers = await asyncio.gather(*first, *tasks)
            assert {answer.status for answer in answers} == {status}
            assert engine_calls(stand) == [["a", "b"]]
            await stand.settle()

    for status in (429, 503):
        run(test(status))


def test_other_kinds_and_other_keys_share_no_call() -> None:
    async def test() -> None:
        engine = Pooler()
        async with scene(engine.script) as stand:
            first = [ask(stand, "one"), ask(stand, "two")]
            await until(lambda: len(stand.engine.asked) == 2)
            tasks = [
                ask(stand, "a", dimensions=8),
                ask(stand, "b", headers={"authorization": "Bearer other"}),
                ask(stand, [1, 2]),
            ]
            await until(lambda: len(stand.engine.asked) == 5)
            engine.go.set()
            await asyncio.gather(*first, *tasks)

    run(test())


@pytest.mark.parametrize(
    "name", ["api-key", "openai-project", "openai-organization", "cookie", "x-session-id", "idempotency-key"]
)
def test_requests_that_say_something_else_to_the_engine_share_no_call(name: str) -> None:
    async def test() -> None:
        engine = Pooler()
        async with scene(engine.script) as stand:
            first = [ask(stand, "one"), ask(stand, "two")]
            await until(lambda: len(stand.engine.asked) == 2)
            tasks = [ask(stand, "a", headers={name: who}) for who in ("alice", "mallory")]
            await until(lambda: len(stand.engine.asked) == 4)
            engine.go.set()
            await asyncio.gather(*first, *tasks)
            assert sorted((texts(asked), asked.headers[name]) for asked in stand.engine.asked[2:]) == [
                (["a"], "alice"),
                (["a"], "mallory"),
            ]

    run(test())


def test_ids_traces_and_counts_of_retries_part_no_call() -> None:
    async def test() -> None:
        engine = Pooler()
        async with scene(engine.script) as stand:
            first = [ask(stand, "one"), ask(stand, "two")]
            await until(lambda: len(stand.engine.asked) == 2)
            tasks = [
                ask(
                    stand,
                    "a",
                    headers={
                        "x-request-id": f"request-{number}",
                        "traceparent": f"00-{number:032x}-{number:016x}-01",
                        "x-stainless-retry-count": str(number),
                    },
                )
                for number in (1, 2)
            ]
            await until(lambda: stand.gateway.door.ongoing == 4)
            engine.go.set()
            await asyncio.gather(*first, *tasks)
            assert engine_calls(stand) == [["a", "a"]]

    run(test())


def test_a_cookie_is_for_the_one_client_whose_call_was_not_shared() -> None:
    async def test() -> None:
        engine = Pooler()
        engine.fields = {"set_cookie": "sid=1", "x_client_request_id": "theirs", "x_request_id": "engine-7"}
        async with scene(engine.script) as stand:
            shared = await gathered(stand, engine, "a", "b")
            assert engine_calls(stand) == [["a", "b"]]
            alone = await ask(stand, "c")

        assert alone.headers["set-cookie"] == "sid=1"
        for answer in shared:
            assert "set-cookie" not in answer.headers
            assert "x-client-request-id" not in answer.headers
            assert answer.headers["x-upstream-request-id"] == "engine-7"

    run(test())


def test_owners_that_leave_take_their_texts_along_and_the_last_one_the_call() -> None:
    async def test() -> None:
        engine = Pooler()
        async with scene(engine.script) as stand:
            first = [ask(stand, "one"), ask(stand, "two")]
            await until(lambda: len(stand.engine.asked) == 2)
            leaves = await gathers(stand, "a")
            leaves.leave()
            await until(lambda: stand.gateway.door.ongoing == 2)
            clients = [await gathers(stand, text) for text in "bcd"]
            clients.append(await stand.client())
            clients[-1].ask(request("e"), PATH)
            await until(lambda: len(stand.engine.asked) == 3)
            assert engine_calls(stand) == [["b", "c", "d", "e"]]
            for client in clients:
                client.leave()
            await until(lambda: stand.engine.asked[2].gone)
            engine.go.set()
            await asyncio.gather(*first)
            await stand.settle()

    run(test())


def test_a_lane_that_did_not_ask_for_it_has_a_call_for_each() -> None:
    async def test() -> None:
        engine = Pooler()
        async with scene(engine.script, DoorSettings(first_lane="interactive")) as stand:
            tasks = [ask(stand, "x") for _ in range(5)]
            await until(lambda: len(stand.engine.asked) == 5)
            engine.go.set()
            await asyncio.gather(*tasks)

    run(test())

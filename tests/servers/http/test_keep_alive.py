"""Signs of life never stand inside an answer, and what comes after them is told, whatever the engine says."""

import asyncio
import contextlib
import json

import pytest

from gateway.harness import Asked, Client, chat, run, standing, until
from millgate.servers.http.contract import DoorSettings

_EVERY_S = 0.02
# Later than the head of an answer on a busy machine.
_LATER_S = 0.25
_LARGE = json.dumps({"object": "x", "pad": "p" * 200_000}).encode()


def _door(path: bytes) -> DoorSettings:
    return DoorSettings(keep_alive_s={path.decode(): _EVERY_S})


async def _rest(client: Client) -> bytes:
    said = b""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while piece := await client.chunk():
            said += piece
    return said


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        (b"/v1/chat/completions", chat(stream=True)),
        (b"/v1/responses", b'{"model":"m","input":"hi","stream":true}'),
        (
            b"/v1/messages",
            b'{"model":"m","max_tokens":5,"stream":true,"messages":[{"role":"user","content":"hi"}]}',
        ),
    ],
)
@pytest.mark.parametrize(
    "complaint",
    [
        b'{"error":{"message":"no room"}}',
        b'{\n  "error": {\n    "message": "no room"\n  }\n}',
        b'{"error":{"message":"no room","type":"x","code":500,"param":null}}',
    ],
    ids=["few fields", "in lines", "all fields"],
)
def test_an_error_answer_after_the_first_sign_of_life_is_one_event_and_a_cut(
    path: bytes, sent: bytes, complaint: bytes
) -> None:
    async def script(asked: Asked) -> None:
        await asyncio.sleep(3 * _EVERY_S)
        asked.reply(complaint, 500)

    async def body() -> None:
        async with standing(script, door=_door(path)) as stand:
            client = await stand.client()
            client.ask(sent, path)
            assert (await client.head()).status == 200
            said = await _rest(client)
            last = said.rstrip(b"\n").rpartition(b"\n\n")[2]
            data = [line.removeprefix(b"data: ") for line in last.split(b"\n") if line.startswith(b"data: ")]
            assert len(data) == 1
            assert b"no room" in data[0]
            json.loads(data[0])
            await until(lambda: stand.outcomes() == {"engine_failed": 1})
            await stand.settle()

    run(body())


def test_no_sign_of_life_is_written_into_a_json_answer_that_has_begun() -> None:
    """The engine answers a request for a stream with one large JSON body, slowly: INV-10."""

    async def script(asked: Asked) -> None:
        half = len(_LARGE) // 2
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(_LARGE)}\r\n\r\n"
        asked.raw(head.encode() + _LARGE[:half])
        await asyncio.sleep(2.5 * _LATER_S)
        asked.raw(_LARGE[half:])

    async def body() -> None:
        async with standing(
            script, door=DoorSettings(keep_alive_s={"/v1/chat/completions": _LATER_S})
        ) as stand:
            got = await stand.ask(chat(stream=True))
            assert got.body == _LARGE

    run(body())


def test_an_answer_that_is_over_is_followed_by_no_sign_of_life() -> None:
    async def script(asked: Asked) -> None:
        asked.reply(b'{"error":{"message":"no"}}', 400)

    async def body() -> None:
        raised: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: raised.append(context))
        door = DoorSettings(keep_alive_s={"/v1/chat/completions": 2 * _LATER_S})
        async with standing(script, door=door) as stand:
            client = await stand.client()
            for _ in range(2):
                client.ask(chat(stream=True))
                assert (await client.answer()).status == 400
                await asyncio.sleep(3 * _LATER_S)
        assert raised == []

    run(body())

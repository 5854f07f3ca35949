"""Sound passes as it comes, whether a stream was asked for or not: its first byte is its first token, and silence alone ends it."""

import asyncio
import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest

from gateway.harness import Asked, Client, Stand, answer, chat, run, standing, until
from millgate.core.settings import LaneSettings
from millgate.core.words import FailureKind
from millgate.http1.client import UpstreamPool
from millgate.servers.http import DoorSettings

SPEECH = b"/v1/audio/speech"
SOUND = b"\xff\xf3" * 400
_DEADLINE_S = 0.3
_IMPATIENT = LaneSettings("interactive", ttft_slo_s=_DEADLINE_S, deadline_s=_DEADLINE_S)
_STREAMS = pytest.mark.parametrize("stream", [True, False])


def speech(**more: Any) -> bytes:
    return json.dumps({"model": "tts", "voice": "a", "input": "hi", **more}).encode()


async def rest_of(client: Client) -> tuple[bytes, bool]:
    """Read chunks to their end; whether there was one."""
    said = b""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while piece := await client.chunk():
            said += piece
        return said, True
    return said, False


async def begins(stand: Stand, stream: bool) -> Client:
    """Ask for sound, and read its head and its first piece."""
    client = await stand.client()
    client.ask(speech(stream=stream), SPEECH)
    head = await asyncio.wait_for(client.head(), 1.0)
    assert (head.status, head.headers["content-type"]) == (200, "audio/mpeg")
    assert await asyncio.wait_for(client.chunk(), 1.0) == SOUND
    return client


@_STREAMS
def test_sound_is_heard_at_once_and_goes_on_beyond_the_deadline_of_a_first_event(stream: bool) -> None:
    async def script(asked: Asked) -> None:
        asked.open_stream("audio/mpeg")
        for _ in range(9):
            asked.send(SOUND)
            await asyncio.sleep(_DEADLINE_S / 4)
        asked.end_stream()

    async def body() -> None:
        door = DoorSettings(first_event_s=_DEADLINE_S)
        async with standing(script, lane=_IMPATIENT, door=door) as stand:
            client = await begins(stand, stream)
            assert await rest_of(client) == (SOUND * 8, True)
            await stand.settle()
            assert sum(stand.outcomes().get(each, 0) for each in ("good", "late")) == 1
            assert stand.lane.slo.ttft is not None
            assert stand.snapshot.good_output_tokens < 10_000

    run(body())


def test_sound_of_known_length_passes_as_it_comes_on_every_request_of_a_connection() -> None:
    """The second head repeats the first: what was concluded of that must hold for it too."""
    release = asyncio.Event()

    async def script(asked: Asked) -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\ncontent-length: {2 * len(SOUND)}\r\n\r\n"
        asked.raw(head.encode() + SOUND)
        await release.wait()
        asked.raw(SOUND)

    async def body() -> None:
        async with standing(script) as stand:
            for _ in range(3):
                client = await stand.client()
                client.ask(speech(), SPEECH)
                await client.head()
                assert await asyncio.wait_for(client.reader.readexactly(len(SOUND)), 1.0) == SOUND
                release.set()
                assert await client.reader.readexactly(len(SOUND)) == SOUND
                release.clear()
            await stand.settle()
            assert stand.outcomes() == {"good": 3}
            assert len({id(asked.writer) for asked in stand.engine.asked}) == 1

    run(body())


@_STREAMS
@pytest.mark.parametrize("end", ["cut", "silence"])
def test_sound_that_breaks_off_or_falls_silent_is_cut_and_the_engines_failure(end: str, stream: bool) -> None:
    async def script(asked: Asked) -> None:
        asked.open_stream("audio/mpeg")
        asked.send(SOUND)
        await asked.writer.drain()
        await asyncio.sleep(0.05)
        if end == "silence":
            await asked.hung_up()
        asked.cut()

    async def body() -> None:
        async with standing(script) as stand:
            pool = stand.gateway.door.engines["engine"].upstream
            assert isinstance(pool, UpstreamPool)
            pool.settings = replace(pool.settings, chunk_idle_s=0.3)
            client = await begins(stand, stream)
            assert await rest_of(client) == (b"", False)
            await stand.settle()
            kind = FailureKind.TIMEOUT if end == "silence" else FailureKind.BROKEN
            assert dict(stand.lane.failures)[kind] == 1

    run(body())


@_STREAMS
def test_sound_that_does_not_begin_in_time_is_a_timeout(stream: bool) -> None:
    async def script(asked: Asked) -> None:
        asked.open_stream("audio/mpeg")
        await asked.hung_up()

    async def body() -> None:
        door = DoorSettings(first_event_s=_DEADLINE_S)
        async with standing(script, lane=_IMPATIENT, door=door) as stand:
            got = await stand.ask(speech(stream=stream), SPEECH)
            assert (got.status, got.error["code"]) == (504, "upstream_timeout")

    run(body())


@pytest.mark.parametrize("kind", ["audio/mpeg", "application/json"])
@_STREAMS
def test_an_answer_that_is_cut_off_by_a_drain_has_no_event_written_into_it(kind: str, stream: bool) -> None:
    piece = b"\xff" * 100_000

    async def script(asked: Asked) -> None:
        asked.open_stream(kind)
        asked.send(piece, SOUND)
        await asked.hung_up()

    async def body() -> None:
        async with standing(script, drain_grace_s=0.1) as stand:
            client = await stand.client()
            client.ask(speech(stream=stream), SPEECH)
            await client.head()
            draining = asyncio.ensure_future(stand.gateway.drain())
            said, whole = await rest_of(client)
            assert (piece + SOUND).startswith(said)
            assert not whole
            await draining

    run(body())


def test_sound_behind_signs_of_life_is_no_answer() -> None:
    """They have promised events. Its engine is let go of, or it would go on for a client that is cut off."""

    async def script(asked: Asked) -> None:
        await asyncio.sleep(0.1)
        asked.open_stream("audio/mpeg")
        while not asked.gone:
            asked.send(SOUND)
            await asyncio.sleep(0.01)

    async def body() -> None:
        door = DoorSettings(keep_alive_s={SPEECH.decode(): 0.02})
        async with standing(script, door=door) as stand:
            client = await stand.client()
            client.ask(speech(stream=True), SPEECH)
            assert (await client.head()).headers["content-type"].startswith("text/event-stream")
            said, whole = await rest_of(client)
            assert b"upstream_protocol_error" in said
            assert SOUND not in said
            assert not whole
            await until(lambda: stand.engine.asked[0].gone)
            await stand.settle()

    run(body())


def test_a_long_json_answer_to_who_asked_for_a_stream_is_not_cut_once_it_passes() -> None:
    whole = answer("x" * 200_000)

    async def script(asked: Asked) -> None:
        asked.raw(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(whole)
        )
        asked.raw(whole[:100_000])
        await asyncio.sleep(2 * _DEADLINE_S)
        asked.raw(whole[100_000:])

    async def body() -> None:
        async with standing(script, lane=_IMPATIENT) as stand:
            got = await stand.ask(chat(stream=True))
            assert (got.status, got.body, got.whole) == (200, whole, True)

    run(body())

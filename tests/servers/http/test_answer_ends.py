"""The usage of a long answer is found at either end, in whatever pieces the answer comes and however slowly it is read."""

import asyncio
import tracemalloc

import pytest

from gateway.harness import Asked, Script, answer, chat, run, standing
from millgate.dialects import DIALECTS
from millgate.dialects.contract import Usage
from millgate.servers.http import DoorSettings
from millgate.servers.requests.judgement import MOST_KEPT_BYTES, AnswerEnds
from servers.line.stand import upload
from servers.line.talk import line_standing

USAGE = b'"usage":{"prompt_tokens":777,"total_tokens":777,"completion_tokens":7}'
FILLING = b'"data":["' + b"x" * 3 * MOST_KEPT_BYTES + b'"]'
FIRST = b'{"id":"r",' + USAGE + b"," + FILLING + b"}"
LAST = b'{"id":"r",' + FILLING + b"," + USAGE + b"}"
LATER = LAST[:-1] + b',"prompt_logprobs":null,"kv":"' + b"y" * 2000 + b'"}'
WHOLE = {"at first": FIRST, "at last": LAST, "before more": LATER}
OPENAI = DIALECTS["openai"]


def in_pieces(body: bytes, *cuts: int) -> Script:
    """Answer in these pieces, each in a read of its own."""

    async def script(asked: Asked) -> None:
        asked.raw(
            b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        for begin, end in zip((0, *cuts), (*cuts, len(body)), strict=True):
            asked.raw(body[begin:end])
            await asked.writer.drain()
            await asyncio.sleep(0.05)

    return script


@pytest.mark.parametrize("body", WHOLE.values(), ids=WHOLE)
@pytest.mark.parametrize("rest", [1, 5, 30, 60, 3000])
def test_an_answer_too_long_to_keep_is_counted_by_what_its_engine_says(body: bytes, rest: int) -> None:
    """It was estimated unless the usage stood whole in the last read."""

    async def test() -> None:
        async with standing(in_pieces(body, len(body) - rest)) as stand:
            got = await stand.ask(chat())
            assert (got.status, got.body) == (200, body)
            await stand.settle()
            assert stand.snapshot.good_output_tokens == 7
            assert stand.gateway.door.unusable_usage == 0

    run(test())


def test_an_answer_that_its_engine_gave_up_is_cut_also_where_the_word_is_in_the_last_but_one_read() -> None:
    """INV-10."""
    body = answer("x" * 2 * MOST_KEPT_BYTES, finish="abort")

    async def test() -> None:
        async with standing(in_pieces(body, len(body) - 10)) as stand:
            got = await stand.ask(chat())
            assert not got.whole
            await stand.settle()
            assert stand.outcomes() == {"engine_failed": 1}

    run(test())


def test_so_is_the_answer_to_a_job_at_the_line_door() -> None:
    async def test() -> None:
        async with line_standing(in_pieces(FIRST, 100_000)) as stand:
            peer = await stand.peer()
            peer.send(upload(chat(), "J", 64))
            await peer.final()
            await stand.settle()
            assert stand.snapshot.good_output_tokens == 7

    run(test())


@pytest.mark.parametrize("body", WHOLE.values(), ids=WHOLE)
@pytest.mark.parametrize("size", [1000, 4096, 65_536, 10_000_000])
def test_pieces_of_any_size_say_the_same(body: bytes, size: int) -> None:
    ends = AnswerEnds(8192)
    for begin in range(0, len(body), size):
        ends.add(body[begin : begin + size])
    assert ends.usage(OPENAI) == Usage(777, 7)
    assert body.endswith(ends.tail)


def test_a_prompt_counted_at_the_beginning_completes_what_is_counted_at_the_end() -> None:
    ends = AnswerEnds(1024)
    ends.add(b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":9,')
    ends.add(b'"output_tokens":1}}}\n\n' + b"x" * 10_000)
    ends.add(b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":70}}\n\n')
    assert ends.usage(DIALECTS["anthropic"]) == Usage(9, 70)


def test_what_is_kept_is_bounded_and_wiped() -> None:
    ends, piece = AnswerEnds(8192), b"x" * 1000
    tracemalloc.start()
    try:
        for _ in range(10_000):
            ends.add(piece)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000, (
            "of ten million; other threads of the process take some, too"
        )
    finally:
        tracemalloc.stop()
    ends.wipe()
    assert ends.tail == b""
    assert ends.usage(OPENAI) is None


def test_a_client_on_a_slow_link_gets_the_whole_of_a_long_answer_and_its_engine_is_not_blamed() -> None:
    """The time of an answer is its engine's: what is there already may take its client longer to read."""
    whole = answer("x" * 3_000_000)

    async def script(asked: Asked) -> None:
        asked.reply(whole)

    async def body() -> None:
        async with standing(script, door=DoorSettings(first_event_s=0.3)) as stand:
            client = await stand.client()
            client.ask(chat())
            size_bytes = int((await client.head()).headers["content-length"])
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(0.7)
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert await client.reader.readexactly(size_bytes) == whole
            await stand.settle()
            assert stand.outcomes() == {"good": 1}

    run(body())

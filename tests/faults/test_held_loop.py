"""No input of a client or an engine holds the one thread for long, whatever its shape; prints the worst of each."""

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import Final

from lab.upstream import answers

from faults.held_loop import at_leisure, bar_s, measured, request, tell
from millgate.dialects.sse import MOST_EVENT_BYTES
from servers.line.stand import upload

BODY_BYTES: Final = 32 * 1024 * 1024
"""The default of `limits.body`."""
CHAT: Final = b"/v1/chat/completions"
MESSAGES: Final = b'"messages":[{"role":"user","content":"x"}]'
BOUNDARY: Final = b"b" * 70
FORM: Final = b"multipart/form-data; boundary=" + BOUNDARY
_STATUS: Final = re.compile(rb"HTTP/1.1 (\d+)")

Made = Callable[[], bytes]


def flood(before: bytes, unit: bytes, behind: bytes, size_bytes: int = BODY_BYTES) -> bytes:
    return before + unit * ((size_bytes - len(before) - len(behind)) // len(unit)) + behind


def chat(before: bytes, unit: bytes, behind: bytes = b"") -> Made:
    """Return a maker of a chat request that floods the gate with this unit in front of its messages."""
    return partial(flood, b"{" + before, unit, behind + MESSAGES + b"}")


def part(name: bytes, value: bytes) -> bytes:
    return b'--%b\r\ncontent-disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (BOUNDARY, name, value)


REQUESTS: Final[dict[str, tuple[bytes, int, Made]]] = {
    "one long string": (CHAT, 200, partial(flood, b'{"messages":[{"content":"', b"a", b'"}]}')),
    "a stream of a long string": (CHAT, 200, chat(b'"stream":true,"x":"', b"a", b'",')),
    "emoji": (CHAT, 200, chat(b'"x":"', "\N{GRINNING FACE}".encode(), b'",')),
    "escapes": (CHAT, 200, chat(b'"x":"', b"\\n", b'",')),
    "a long escaped name": (CHAT, 200, chat(b'"', b"\\n", b'":0,')),
    "names": (CHAT, 400, chat(b"", b'"":0,')),
    "one name again and again": (CHAT, 400, chat(b"", b'"model":"",')),
    "brackets": (CHAT, 200, chat(b'"x":[', b"[],", b"0],")),
    "nests": (CHAT, 200, chat(b'"x":[', b"[[[[[]]]]],", b"0],")),
    "nests in escapes": (
        CHAT,
        200,
        partial(flood, b'{"x":[', b'{"\\u4e2d":[[]]},', b"0]," + MESSAGES + b"}", 262_000),
    ),
    "a nest without end": (CHAT, 400, chat(b'"x":', b"[")),
    "numbers": (CHAT, 200, chat(b'"x":[', b"0,", b"0],")),
    "typed parts": (CHAT, 400, chat(b'"x":[', b'{"type":"file"},', b"0],")),
    "pictures": (CHAT, 200, chat(b'"type":0,"x":[', b'"data:;base64,' + b"A" * 40_000 + b'",', b"0],")),
    "white space": (CHAT, 200, chat(b"", b" ")),
    "messages": (CHAT, 400, partial(flood, b'{"messages":[', b"{},", b"{}]}")),
    "wrong at the very end": (CHAT, 400, partial(flood, b'{"messages":[', b"{},", b"{}]")),
    "no UTF-8 at the very end": (CHAT, 400, partial(flood, b'{"x":"', b"a", b'\xff",' + MESSAGES + b"}")),
    "conversations": (CHAT + b"/batch", 400, partial(flood, b'{"messages":[', b"[{}],", b"[{}]]}")),
    "token ids": (b"/v1/completions", 200, partial(flood, b'{"prompt":[', b"50256,", b"0]}")),
    "blocks": (
        b"/v1/messages",
        200,
        partial(flood, b'{"max_tokens":1,"x":[', b"[],", b"0]," + MESSAGES + b"}"),
    ),
    "items": (b"/v1/responses", 200, partial(flood, b'{"input":[', b"[[]],", b"0]}")),
    "texts": (b"/v1/embeddings", 400, partial(flood, b'{"input":[', b'"a",', b'"a"]}')),
    "long texts": (
        b"/v1/embeddings",
        200,
        partial(flood, b'{"input":[', b'"' + b"a, " * 9_000 + b'",', b'"a"]}'),
    ),
    "documents": (b"/v1/rerank", 400, partial(flood, b'{"query":"a","documents":[', b'"a",', b'"a"]}')),
    "a recording": (
        b"/v1/audio/transcriptions",
        200,
        partial(flood, part(b"file", b""), b"\r\n--" + b"b" * 69, b"\r\n--" + BOUNDARY + b"--\r\n"),
    ),
    "speech": (b"/v1/audio/speech", 200, partial(flood, b'{"model":"m","input":[', b"[],", b"0]}")),
    "what is not read": (b"/tokenize", 200, partial(flood, b"{", b"[],", b"}")),
}


def test_no_body_of_a_client_holds_the_loop() -> None:
    async def scene() -> None:
        async with measured() as (gateway, engine, turns):
            held_s = {}
            for name, (path, status, make) in REQUESTS.items():
                body = await asyncio.to_thread(make)
                data = request(path, body, FORM if b"audio/t" in path else b"application/json")
                said, worst_s = await turns.during(partial(tell, gateway.port, data))
                held_s[name] = show(name, worst_s)
                found = _STATUS.match(said)
                assert found is not None, name
                assert int(found[1]) == status, (name, said[:500])
                if status == 200:
                    assert engine.bodies_bytes[-1] >= len(body)
            assert over(held_s) == {}

    at_leisure(scene())


def test_no_flood_of_chunks_holds_the_loop() -> None:
    async def scene() -> None:
        async with measured() as (gateway, _engine, turns):
            head, _ = request(CHAT, b"")
            head = head.replace(b"content-length: 0", b"transfer-encoding: chunked")
            flooded = await asyncio.to_thread(flood, b"", b"1\r\n{\r\n", b"0\r\n\r\n")
            said, worst_s = await turns.during(partial(tell, gateway.port, [head, flooded]))
            assert over({"chunks": show("chunks of a byte", worst_s)}) == {}
            assert said.startswith(b"HTTP/1.1 400")

    at_leisure(scene())


def show(name: str, held_s: float) -> float:
    print(f"{name:28} {1000 * held_s:8.1f} ms")  # noqa: T201 - the table is for people
    return held_s


def over(held_s: dict[str, float]) -> dict[str, float]:
    """Return what is over the bar."""
    most_s = bar_s()
    return {name: seconds for name, seconds in held_s.items() if seconds > most_s}


PAYLOADS: Final = {
    "a job of brackets": partial(flood, b'{"x":[', b"[],", b"0]," + MESSAGES + b"}"),
    "a job of white space": partial(flood, b"", b" ", b"no JSON"),
    "a job of zeros": partial(flood, b"", b"\0", b""),
}


def test_no_job_of_the_line_door_holds_the_loop() -> None:
    async def scene() -> None:
        async with measured() as (gateway, _engine, turns):
            held_s = {}
            for name, make in PAYLOADS.items():
                lines = [await asyncio.to_thread(lambda make=make: upload(make(), step=128 * 1024))]  # type: ignore[misc]
                said, worst_s = await turns.during(
                    partial(tell, gateway.line_port, lines, until=b"conn.outcome")
                )
                held_s[name] = show(name, worst_s)
                assert b"conn.outcome" in said
            assert over(held_s) == {}

    at_leisure(scene())


PING: Final = b'{"v":0,"verb":"ping","job":"J","seq":1'
LINE_BYTES: Final = 256 * 1024 - 1
LINES: Final = {
    "a line of nests": (b',"x":[', b"[" * 900 + b"]" * 900 + b",", b"0]}"),
    "a line of objects": (b',"x":[', b'{"A":{}},', b"0]}"),
    "a line of receipts": (b',"receipts":[', b'{"kind":"a","value_u64":1},', b"{}]}"),
    "a line of nulls": (b',"x":[', b"null,", b"0]}"),
    "a line of names": (b"", b',"V":0', b"}"),
    "a line of a number": (b',"x":', b"9", b"}"),
    "a line of no UTF-8": (b',"x":"', b"\xff", b'"}'),
}


def test_no_line_of_a_client_holds_the_loop() -> None:
    async def scene() -> None:
        async with measured() as (gateway, _engine, turns):
            held_s = {}
            for name, (before, unit, behind) in LINES.items():
                line = flood(PING + before, unit, behind, LINE_BYTES) + b"\n"
                lines = [line * 4, PING + b',"ttl_ms":77}\n']
                said, worst_s = await turns.during(
                    partial(tell, gateway.line_port, lines, until=b'"ttl_ms":77')
                )
                held_s[name] = show(name, worst_s)
                assert said.count(b"\n") >= 4, name
            assert over(held_s) == {}

    at_leisure(scene())


def stream(*events: bytes) -> bytes:
    return answers.head(200, answers.EVENT_STREAM, chunked=False) + b"".join(events)


def events(unit: bytes, size_bytes: int = 2 * 1024 * 1024) -> Made:
    return lambda: stream(answers.event("a"), flood(b"", unit, b"\n\n", size_bytes))


def long_event(before: bytes, unit: bytes, behind: bytes) -> bytes:
    return stream(answers.event("a"), flood(before, unit, behind, MOST_EVENT_BYTES))


EVENT_BYTES: Final = 1024 * 1024 - 16
ANSWERS: Final[dict[str, Made]] = {
    "a whole answer of brackets": lambda: answers.whole(flood(b'{"x":[', b"[],", b"0]}")),
    "a whole answer of usages": lambda: answers.whole(flood(b'{"x":[', b'"usage":{,', b"0]}")),
    "line ends": events(b"\n"),
    "carriage returns": events(b"\r"),
    "blank comments": events(b":\n\n"),
    "nameless events": events(b"a\n\n"),
    "empty events": events(b"data:\n\n"),
    "small events": events(b"data:0\n\n"),
    "unfinished events": events(b'data:{"finish_reason":null}\n\n'),
    "an event of choices": events(b'data:{"choices":[' + b"{}," * (EVENT_BYTES // 3 - 20) + b"{}]}\n\n"),
    "an event of deltas": events(
        b'data:{"choices":[' + b'{"delta":{}},' * (EVENT_BYTES // 13 - 20) + b"{}]}\n\n"
    ),
    "an event of brackets": events(b"data:[" + b"[]," * (EVENT_BYTES // 3 - 20) + b"0]\n\n"),
    "an event of lines": events(b"data:\n" * (EVENT_BYTES // 6) + b"\n"),
    "an event of other lines": events(b"a\n" * (EVENT_BYTES // 2) + b"\n"),
    "an event of returns": events(b"d\r" * (EVENT_BYTES // 2) + b"\n\n"),
    "a long event of brackets": partial(long_event, b"data:[", b"[],", b"0]\n\n"),
    "a long event of strings": partial(long_event, b"data:[", b'"",', b"0]\n\n"),
    "a long event of images": partial(long_event, b"data:[", b'"' + b"A" * 400_000 + b'",', b"0]\n\n"),
    "a long event of lines": partial(long_event, b"", b"data:\n", b"\n"),
    "a long event of returns": partial(long_event, b"", b"d\r", b"\n\n"),
    "an error of brackets": lambda: answers.whole(flood(b'{"error":[', b"[],", b"0]}"), 400),
}
STREAMS: Final = {
    CHAT: b'{"stream":true,"messages":[{"role":"user","content":"x"}]}',
    b"/v1/messages": b'{"stream":true,"max_tokens":9,"messages":[{"role":"user","content":"x"}]}',
    b"/v1/responses": b'{"stream":true,"input":"x"}',
    b"/v1/audio/speech": b'{"model":"m","input":"x","stream_format":"sse"}',
}


def test_no_answer_of_an_engine_holds_the_loop() -> None:
    async def scene() -> None:
        async with measured() as (gateway, engine, turns):
            held_s = {}
            for name, make in ANSWERS.items():
                engine.says = await asyncio.to_thread(make)
                for path, asked in STREAMS.items():
                    said, worst_s = await turns.during(partial(tell, gateway.port, request(path, asked)))
                    assert _STATUS.match(said), name
                    place = f"{name}, {path.rpartition(b'/')[2].decode()}"
                    held_s[place] = show(place, worst_s)
            assert over(held_s) == {}

    at_leisure(scene())

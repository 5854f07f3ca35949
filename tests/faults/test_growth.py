"""What an engine or a client sends is read in time that grows with its bytes, however it is written.

Each case is read at one, two and four times a size. Four times the bytes of a reader that looks at everything again and
again cost sixteen times the processor time; the bound is eight, and what takes a few milliseconds is never too long.
"""

import asyncio
import contextlib
import struct
import time
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Final

import pytest

from millgate.dialects.anthropic import ANTHROPIC
from millgate.dialects.audio import AUDIO
from millgate.dialects.contract import BadInputError, Dialect
from millgate.dialects.forms import read_form
from millgate.dialects.line import read_reply, read_request
from millgate.dialects.openai import OPENAI
from millgate.dialects.pooling import POOLING
from millgate.dialects.quota_headers import read_quota_headers
from millgate.dialects.responses import RESPONSES
from millgate.dialects.sse import EventFloodError, Splitter, payload
from millgate.http1.client.answer import ProtocolViolationError
from millgate.http1.client.reader import AnswerReader
from millgate.http1.server import ByteBudget
from millgate.http1.wire.fields import HeaderReader, listed
from millgate.runtime.gauges import read_gauges
from millgate.runtime.verdicts import named_limit, seconds
from millgate.servers.extproc.frames import (
    DATA,
    END_HEADERS,
    FIRST_WINDOW,
    HEADERS,
    INITIAL_WINDOW,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
)
from millgate.servers.extproc.hpack import Field
from millgate.servers.extproc.http2 import Http2Connection, Http2Stream
from millgate.servers.line import LineLimits
from millgate.servers.line.intake import LineIntake, LineTooLongError
from millgate.servers.requests.fields import retry_count

SIZE: Final = 32 * 1024
MOST_GROWTH: Final = 8.0
NEVER_TOO_LONG_S: Final = 0.008
"""A reader that is quadratic needs this for 128 KB even where it compares 32 bytes in a nanosecond."""

Reading = Callable[[bytes], object]
_DIALECTS: Final[tuple[Dialect, ...]] = (OPENAI, ANTHROPIC, RESPONSES, POOLING, AUDIO)
_REFUSED: Final = (BadInputError, EventFloodError, LineTooLongError, ProtocolViolationError, ValueError)


def growth(read: Reading, make: Callable[[int], bytes]) -> tuple[float, float]:
    """Return the processor time for four times `SIZE`, in seconds, and how often that of `SIZE` it is."""
    once_s, _twice_s, four_s = (_least_s(read, make(SIZE * times)) for times in (1, 2, 4))
    return four_s, four_s / max(once_s, 1e-6)


def _least_s(read: Reading, data: bytes) -> float:
    """Return the least of a few times; one that is short is disturbed most, and measured most often."""
    least_s = float("inf")
    for _ in range(3):
        began_s = time.thread_time()
        with contextlib.suppress(*_REFUSED):
            read(data)
        least_s = min(least_s, time.thread_time() - began_s)
    return least_s


def check(read: Reading, make: Callable[[int], bytes]) -> None:
    for _again in range(3):  # a neighbour on the processor makes single times longer
        four_s, times = growth(read, make)
        if four_s <= NEVER_TOO_LONG_S or times <= MOST_GROWTH:
            return
    pytest.fail(f"four times the bytes took {times:.1f} times as long: {four_s:.3f} s")


def repeated(piece: bytes, begin: bytes = b"", end: bytes = b"") -> Callable[[int], bytes]:
    """Return what makes a text of a size: the piece again and again, between a beginning and an end."""
    return lambda size: begin + piece * ((size - len(begin) - len(end)) // len(piece)) + end


# ---- streams


def split_in_pieces(piece_bytes: int) -> Reading:
    def split(data: bytes) -> None:
        splitter = Splitter()
        for at in range(0, len(data), piece_bytes):
            splitter.feed(data[at : at + piece_bytes])

    return split


STREAMS: Final[Mapping[str, Callable[[int], bytes]]] = {
    "a line without end": repeated(b"x", b"data: "),
    "blank lines": repeated(b"\n"),
    "carriage returns": repeated(b"\r"),
    "both line ends": repeated(b"\r\n"),
    "one event of many lines": repeated(b"data: x\n", end=b"\n"),
    "short events": repeated(b"data:\n\n"),
    "comments": repeated(b":\r"),
}


@pytest.mark.parametrize("piece_bytes", [1, 61, 1 << 20])
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_split_in_the_time_of_its_bytes(name: str, piece_bytes: int) -> None:
    check(split_in_pieces(piece_bytes), STREAMS[name])


@pytest.mark.parametrize("name", STREAMS)
def test_the_lines_of_an_event_are_joined_in_the_time_of_its_bytes(name: str) -> None:
    check(payload, STREAMS[name])


# ---- JSON of engines

JSONS: Final[Mapping[str, Callable[[int], bytes]]] = {
    "usage again and again, no object": repeated(b'"usage":1,', b'{"id":"a",'),
    "usage again and again, one end": repeated(b'"usage":1,', b'{"id":"a",', b"}"),
    "usage again and again, objects": repeated(b'"usage":{"a":1},', b"{", b'"b":1}'),
    "usage that never ends": repeated(b'"usage":{'),
    "usage and spaces": repeated(b'"usage" ' + b" " * 100),
    "usage and one long space": repeated(b" ", b'{"usage"'),
    "usage as a text": repeated(b'\\"usage\\":{', b'{"a":"', b'"}'),
    "usage of many counts": repeated(b'"prompt_tokens":1 ,', b'{"usage":{', b'"completion_tokens":2}}'),
    "counts that are none": repeated(b'"prompt_tokens":' + b" " * 50, b'{"usage":{'),
    "cached tokens": repeated(b'"cached_tokens":', b'{"usage":{'),
    "nested lists": repeated(b"[", b'{"usage":'),
    "nested objects": repeated(b'{"a":', b'{"usage":'),
    "one long text": repeated(b"\\u0000", b'{"choices":[{"delta":{"content":"', b'"}}]}'),
    "many keys": repeated(b'"k":1,', b"{", b'"id":"a"}'),
    "many choices": repeated(b'{"delta":{"content":"a"}},', b'{"choices":[', b"{}]}"),
    "abort": repeated(b'"finish_reason" "abort" ', b'{"a":1'),
    "ids": repeated(b'"id":"resp', b"{"),
    "one long id": repeated(b"a", b'{"id":"resp_'),
    "errors": repeated(b'{"error":', b'{"error":'),
    "a long number": repeated(b"9", b'{"usage":{"prompt_tokens":'),
}


@pytest.mark.parametrize("dialect", _DIALECTS, ids=lambda dialect: str(dialect.name))
@pytest.mark.parametrize("name", JSONS)
def test_what_an_answer_tells_is_found_in_the_time_of_its_bytes(name: str, dialect: Dialect) -> None:
    def read(answer: bytes) -> None:
        dialect.read_usage(answer)
        dialect.read_id(answer)
        dialect.is_aborted(answer)
        dialect.read_event(b"data: " + answer + b"\n\n")

    check(read, JSONS[name])


# ---- heads and chunks of engines


def answer_in_pieces(piece_bytes: int) -> Reading:
    def read(data: bytes) -> None:
        reader = AnswerReader(1 << 20, 8)
        for at in range(0, len(data), piece_bytes):
            reader.feed(data[at : at + piece_bytes], head_only=False)
            reader.parts.clear()

    return read


_CHUNKED: Final = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
ANSWERS: Final[Mapping[str, Callable[[int], bytes]]] = {
    "a head without end": repeated(b"x", b"HTTP/1.1 200 OK\r\nx-filler: "),
    "a head of many fields": repeated(b"x: y\r\n", b"HTTP/1.1 200 OK\r\n", b"\r\n"),
    # Lines so long are not remembered, and cost at every size what they cost the first time.
    "a head of different fields": lambda size: (
        b"HTTP/1.1 200 OK\r\n"
        + b"".join(b"x%06d: %b\r\n" % (number, b"y" * 256) for number in range(size // 267))
        + b"\r\n"
    ),
    "connection of many names": repeated(b"a,", b"HTTP/1.1 200 OK\r\nconnection: ", b"a\r\n\r\n"),
    "chunks of a byte": repeated(b"1\r\nx\r\n", _CHUNKED),
    "chunks with extensions": repeated(b"1;a=b\r\nx\r\n", _CHUNKED),
    "one long extension": repeated(b"a", _CHUNKED + b"1;"),
    "trailers": repeated(b"x: y\r\n", _CHUNKED + b"0\r\n"),
    "one long size": repeated(b"0", _CHUNKED),
    "a body until the end": repeated(b"x", b"HTTP/1.0 200 OK\r\n\r\n"),
}


@pytest.mark.parametrize("piece_bytes", [16, 1 << 20])
@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_read_in_the_time_of_its_bytes(name: str, piece_bytes: int) -> None:
    check(answer_in_pieces(piece_bytes), ANSWERS[name])


def _lines(data: bytes) -> object:
    return HeaderReader().read(data.split(b"\r\n"))


def _quotas(data: bytes) -> object:
    fields = [
        (b"x-ratelimit-%d" % number, data[at : at + 16]) for number, at in enumerate(range(0, len(data), 16))
    ]
    known = (b"x-ratelimit-reset-tokens", b"anthropic-ratelimit-tokens-reset", b"date", b"retry-after")
    fields += [(name, value) for name in known for value in (data, data[:64])]
    return read_quota_headers(fields, 0.0)


FIELDS: Final[Mapping[str, Reading]] = {
    "lines": _lines,
    "a list": listed,
    "quotas": _quotas,
    "seconds": seconds,
    "a retry label": retry_count,
    "the words of a refusal": named_limit,
}
VALUES: Final[Mapping[str, Callable[[int], bytes]]] = {
    "digits": repeated(b"1"),
    "digits and dots": repeated(b"1."),
    "a long duration": repeated(b"1h"),
    "spaces": repeated(b" "),
    "commas": repeated(b","),
    "colons": repeated(b"a:\r\n"),
    "words": repeated(b"input tokens requests per "),
}


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("field", FIELDS)
def test_a_field_is_read_in_the_time_of_its_bytes(field: str, value: str) -> None:
    check(FIELDS[field], VALUES[value])


# ---- pages of metrics

_RUNNING: Final = b"vllm:num_requests_running"
PAGES: Final[Mapping[str, Callable[[int], bytes]]] = {
    "a label without end": repeated(b"a", _RUNNING + b"{", b"} 1\n"),
    "labels without value": repeated(b"a=", _RUNNING + b"{", b"} 1\n"),
    "a value without end": repeated(b"a", _RUNNING + b'{a="'),
    "escapes": repeated(b'\\"', _RUNNING + b'{a="', b'"} 1\n'),
    "labels": repeated(b'a="",', _RUNNING + b"{", b"} 1\n"),
    "lines": repeated(_RUNNING + b'{a="b"} 1\n'),
    "labels without end in many lines": repeated(_RUNNING + b"{" + b"a" * 5_000 + b"} 1\n"),
    "longer names": repeated(_RUNNING + b"_x 1\n"),
    "nearly the name": repeated(b"\n" + _RUNNING[:-1], end=b"\n" + _RUNNING + b" 1\n"),
    "digits": repeated(b"1", _RUNNING + b" ", b"\n"),
    "braces": repeated(b"}", _RUNNING + b"{", b"\n"),
    "spaces": repeated(b" ", _RUNNING, b"1\n"),
    "blocks of many digits": repeated(
        b"9", _RUNNING + b' 1\nvllm:cache_config_info{num_gpu_blocks="', b'"} 1\n'
    ),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_metrics_is_read_in_the_time_of_its_bytes(name: str) -> None:
    check(read_gauges, PAGES[name])


# ---- what clients send

BODIES: Final[Mapping[str, Callable[[int], bytes]]] = {
    **JSONS,
    "many messages": repeated(b'{"role":"user","content":"a"},', b'{"model":"m","messages":[', b"{}]}"),
    "typed parts": repeated(
        b'{"type":"image_url"},', b'{"model":"m","messages":[{"role":"user","content":[', b"{}]}]}"
    ),
    "marks of data": repeated(b'"data":"",', b'{"model":"m","messages":[{"role":"user"}],"x":{', b'"y":1}}'),
    "marks of base64": repeated(b";base64,", b'{"model":"m","messages":[{"role":"user","content":"', b'"}]}'),
    "names twice": repeated(b'"model":"m",', b"{", b'"messages":[{"role":"user"}]}'),
    "many tools": repeated(b"{},", b'{"model":"m","messages":[{}],"tools":[', b"{}]}"),
    "many stops": repeated(b'"a",', b'{"model":"m","messages":[{}],"stop":[', b'"b"]}'),
    "many prompts": repeated(b'"a",', b'{"model":"m","input":[', b'"b"]}'),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_is_read_in_the_time_of_its_bytes(name: str) -> None:
    readers = dict(chain.from_iterable(dialect.readers.items() for dialect in _DIALECTS))
    for read in readers.values():
        check(read, BODIES[name])


@pytest.mark.parametrize(
    "make",
    [
        repeated(b'--b\r\ncontent-disposition: form-data; name="a"\r\n\r\nx\r\n', end=b"--b--\r\n"),
        repeated(b"\r\n--", b'--b\r\ncontent-disposition: form-data; name="a"\r\n\r\n', b"\r\n--b--\r\n"),
        repeated(b";a=b", b"--b\r\ncontent-disposition: form-data", b"\r\n\r\nx\r\n--b--\r\n"),
    ],
)
def test_a_form_is_read_in_the_time_of_its_bytes(make: Callable[[int], bytes]) -> None:
    check(lambda body: read_form(body, b"b", ("a",)), make)


def lines_in_pieces(piece_bytes: int) -> Reading:
    def read(data: bytes) -> None:
        intake = LineIntake(LineLimits(), ByteBudget().share("", ""), 1 << 20)
        for at in range(0, len(data), piece_bytes):
            intake.feed(data[at : at + piece_bytes])
            for _line in intake.turn():
                pass
            while intake.pending:
                for _line in intake.turn():
                    pass

    return read


@pytest.mark.parametrize("piece_bytes", [1, 1 << 20])
@pytest.mark.parametrize("piece", [b"x", b"\n", b"{}\r\n"])
def test_lines_are_cut_in_the_time_of_their_bytes(piece: bytes, piece_bytes: int) -> None:
    check(lines_in_pieces(piece_bytes), repeated(piece))


@pytest.mark.parametrize("name", JSONS)
def test_a_line_is_read_in_the_time_of_its_bytes(name: str) -> None:
    check(read_request, JSONS[name])
    check(read_reply, JSONS[name])


# ---- frames of Envoy's connections

_OPENED: Final = struct.Struct(">IBIcIBIc")
_SHORT: Final = struct.Struct(">IBII")
_WIDER: Final = _SHORT.pack(4 << 8 | WINDOW_UPDATE, 0, 0, 1)


def _answered_at_once(stream: Http2Stream, _fields: list[Field]) -> None:
    """Answer the first stream with all that the connection's window takes, so that the others wait for more of it."""
    stream.send(b"x" * (FIRST_WINDOW if stream.number == 1 else 10))
    stream.finish(b"")


def _frames(data: bytes) -> None:
    async def take() -> None:
        Http2Connection(_answered_at_once, set(), 1 << 20).data_received(PREFACE + data)

    asyncio.run(take())


def _opened(number: int) -> bytes:
    """Return a stream with a method and a byte of data, which earns its frames."""
    head, data = 1 << 8 | HEADERS, 1 << 8 | DATA
    return _OPENED.pack(head, END_HEADERS, number, b"\x83", data, 0, number, b"x")


def _streams_behind(more: Callable[[int], bytes], first: bytes = b"") -> Callable[[int], bytes]:
    """Return what makes frames: streams that wait for a window, then as many of what `more` makes of a stream's number."""

    def make(size: int) -> bytes:
        numbers = range(1, 2 * (size // (_OPENED.size + len(more(1)))), 2)
        return first + b"".join(map(_opened, numbers)) + b"".join(map(more, numbers))

    return make


FRAMES: Final[Mapping[str, Callable[[int], bytes]]] = {
    "a connection's window that grows by a byte": _streams_behind(lambda _number: _WIDER),
    "a connection's window of streams without their own": _streams_behind(
        lambda _number: _WIDER,
        struct.pack(">IBIHI", 6 << 8 | SETTINGS, 0, 0, INITIAL_WINDOW, 0)
        + _SHORT.pack(4 << 8 | WINDOW_UPDATE, 0, 0, 1 << 20),
    ),
    "a stream's window that grows by a byte": _streams_behind(
        lambda number: _SHORT.pack(4 << 8 | WINDOW_UPDATE, 0, number, 1)
    ),
}


@pytest.mark.parametrize("name", FRAMES)
def test_frames_are_taken_in_the_time_of_their_bytes(name: str) -> None:
    check(_frames, FRAMES[name])


# ---- the measure itself


@pytest.mark.parametrize(("power", "found"), [(1, False), (2, True)])
def test_the_measure_finds_a_reader_that_looks_at_everything_again(
    power: int, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent_s = 0.0

    def read(data: bytes) -> None:
        nonlocal spent_s
        spent_s += NEVER_TOO_LONG_S * (len(data) / SIZE) ** power

    monkeypatch.setattr(time, "thread_time", lambda: spent_s)
    with pytest.raises(pytest.fail.Exception) if found else contextlib.nullcontext():
        check(read, repeated(b"x"))

"""Frames that no gRPC library sends: each ends the connection it comes on, and no other."""

import asyncio
import struct

import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest

from gateway.harness import run, until
from millgate.servers.extproc.frames import (
    CALM,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FIRST_WINDOW,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PROTOCOL_ERROR,
    PUSH,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    FrameWriter,
)
from millgate.servers.extproc.hpack import HpackDecoder, HpackError, decoded, literal
from servers.extproc.envoys import PROCESS, Stand, health_of, standing

HEAD = b"".join(
    literal(*pair)
    for pair in (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", PROCESS.encode()),
        (b"te", b"trailers"),
    )
)


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


async def end_of(stand: Stand, *frames: bytes, preface: bytes = PREFACE + frame(SETTINGS)) -> int:
    """Send these, and return the code of the GOAWAY that answers them."""
    assert stand.gateway.extproc is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", stand.gateway.extproc.port)
    try:
        writer.write(preface + b"".join(frames))
        told = await reader.read()
    finally:
        writer.close()
    at = 0
    while at < len(told):
        length, kind = int.from_bytes(told[at : at + 3]), told[at + 3]
        if kind == GOAWAY:
            return int.from_bytes(told[at + 13 : at + 17])
        at += 9 + length
    raise AssertionError("no GOAWAY")


OPEN = frame(HEADERS, END_HEADERS, 1, HEAD)


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([frame(DATA, 0, 1, b"x")], PROTOCOL_ERROR),
        ([frame(HEADERS, END_HEADERS, 2, HEAD)], PROTOCOL_ERROR),
        ([frame(HEADERS, 0, 1, HEAD), frame(PING, 0, 0, b"8" * 8)], PROTOCOL_ERROR),
        ([frame(CONTINUATION, END_HEADERS, 1, HEAD)], PROTOCOL_ERROR),
        ([frame(HEADERS, 0, 1), *[frame(CONTINUATION, 0, 1, b"\0" * 16_384)] * 5], CALM),
        ([frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff")], COMPRESSION_ERROR),
        ([frame(HEADERS, END_HEADERS, 1, b"\xbe")], COMPRESSION_ERROR),
        ([frame(PUSH, 0, 1)], PROTOCOL_ERROR),
        ([frame(PING, 0, 0, b"7")], FRAME_SIZE_ERROR),
        ([frame(DATA, 0, 1, b"x" * 16_385)], FRAME_SIZE_ERROR),
        ([frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\0")], PROTOCOL_ERROR),
        ([frame(WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff")], FLOW_CONTROL_ERROR),
        ([frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 31))], FLOW_CONTROL_ERROR),
        ([frame(RST_STREAM, 0, 1, b"\0" * 4)], PROTOCOL_ERROR),
        ([OPEN, frame(DATA, 8, 1, b"\x05abc")], PROTOCOL_ERROR),
        ([OPEN, frame(HEADERS, END_HEADERS, 1, HEAD)], PROTOCOL_ERROR),
        ([frame(PING, 0, 0, b"8" * 8)] * 200, CALM),
        ([frame(SETTINGS)] * 2_000, CALM),
    ],
)
def test_a_peer_that_breaks_the_rules_is_told_how_and_cut_off(frames: list[bytes], code: int) -> None:
    async def scene() -> None:
        async with standing() as stand:
            assert await end_of(stand, *frames) == code
            assert await health_of(stand, "") == 1
            assert stand.gateway.extproc is not None
            await until(lambda: stand.gateway.extproc is not None and stand.gateway.extproc.ongoing == 0)

    run(scene())


def test_what_is_no_http2_is_cut_off_at_its_first_bytes() -> None:
    async def scene() -> None:
        async with standing() as stand:
            assert await end_of(stand, preface=b"GET / HTTP/1.1\r\n\r\n") == PROTOCOL_ERROR

    run(scene())


def test_streams_that_are_opened_and_reset_without_end_are_cut_off() -> None:
    async def scene() -> None:
        resets = [
            frame(HEADERS, END_HEADERS, number, HEAD) + frame(RST_STREAM, 0, number, struct.pack(">I", 8))
            for number in range(1, 1_101, 2)
        ]
        async with standing() as stand:
            assert await end_of(stand, *resets) == CALM
            assert stand.gateway.extproc is not None
            assert stand.gateway.extproc.ongoing == 0

    run(scene())


class Waiting:
    """A stream with bytes that wait for a window; all of a test count their steps together."""

    def __init__(self, out: FrameWriter, number: int, steps: list[int]) -> None:
        self.out, self.number, self.steps = out, number, steps
        self.window = self.unsent = 0
        self.left = 3

    def flush(self) -> None:
        self.steps.append(self.number)
        sent = min(self.left, max(0, self.out.room(self.window)))
        self.window -= self.out.spend(sent)
        self.left -= sent
        if self.left:
            self.out.holds(self, self.left)
        else:
            self.out.drop(self)


@pytest.mark.parametrize("streams", [1_000, 2_000, 4_000])
def test_a_window_that_grows_by_a_byte_costs_one_step_however_many_wait(streams: int) -> None:
    out, steps = FrameWriter(), list[int]()
    out.spend(FIRST_WINDOW)
    waiting = [Waiting(out, number, steps) for number in range(streams)]
    for each in waiting:
        each.flush()
    del steps[:]

    for _ in range(500):
        out.widen(1)

    assert steps == list(range(500)), "the longest wait first, and each update serves one"


@pytest.mark.parametrize("streams", [1_000, 2_000, 4_000])
def test_streams_that_wait_for_their_own_window_cost_nothing_when_another_one_grows(streams: int) -> None:
    out, steps = FrameWriter(), list[int]()
    out.resize(0)
    waiting = [Waiting(out, number, steps) for number in range(streams)]
    for each in waiting:
        each.flush()
    del steps[:]

    for _ in range(500):
        out.widen(1)
    assert not steps

    assert out.resize(2) == streams
    assert {each.left for each in waiting} == {1}
    assert out.resize(1) == 0, "a smaller one lets nothing go"
    assert out.resize(3) == streams
    assert {each.left for each in waiting} == {0}


def test_answers_that_wait_for_a_window_come_whole_and_one_after_the_other_as_it_grows() -> None:
    check = struct.pack(">BI", 0, 0)
    path = b"/grpc.health.v1.Health/Check"
    head = HEAD.replace(literal(b":path", PROCESS.encode()), literal(b":path", path))

    async def scene() -> None:
        async with standing() as stand:
            assert stand.gateway.extproc is not None
            reader, writer = await asyncio.open_connection("127.0.0.1", stand.gateway.extproc.port)
            writer.write(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0)))
            numbers = range(1, 601, 2)
            for number in numbers:
                writer.write(frame(HEADERS, END_HEADERS, number, head))
                writer.write(frame(DATA, END_STREAM, number, check))
            writer.write(frame(WINDOW_UPDATE, 0, numbers[-1], struct.pack(">I", 3)))
            writer.write(frame(SETTINGS, 0, 0, struct.pack(">HIHI", 4, 1, 4, 4)))
            writer.write(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 16)))
            writer.write(frame(PING, 0, 0, b"all sent"))
            told = await reader.readuntil(b"all sent")
            writer.close()

        sent: dict[int, bytes] = {}
        at = 0
        while at + 9 <= len(told):
            length, kind = int.from_bytes(told[at : at + 3]), told[at + 3]
            number = int.from_bytes(told[at + 5 : at + 9])
            if kind == DATA:
                sent[number] = sent.get(number, b"") + told[at + 9 : at + 9 + length]
            at += 9 + length
        assert sent == dict.fromkeys([numbers[-1], *numbers], b"\0\0\0\0\x02\x08\x01")

    run(scene())


def test_settings_that_make_all_that_wait_try_again_and_again_are_cut_off() -> None:
    asked = ProcessingRequest()
    for name, value in ((":method", "POST"), (":path", "/v1/messages")):
        asked.request_headers.headers.headers.add(key=name, raw_value=value.encode())
    asked.request_headers.end_of_stream = True
    message = asked.SerializeToString()
    data = struct.pack(">BI", 0, len(message)) + message
    streams = [
        frame(HEADERS, END_HEADERS, number, HEAD) + frame(DATA, 0, number, data)
        for number in range(1, 4_001, 2)
    ]
    growing = [frame(SETTINGS, 0, 0, struct.pack(">HI", 4, window)) for window in range(1, 100)]

    async def scene() -> None:
        async with standing() as stand:
            at_first = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0))
            at_first += frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 24))
            assert await end_of(stand, at_first, *streams, *growing) == CALM

    run(scene())


def test_a_message_that_is_none_ends_its_call_alone() -> None:
    async def scene() -> None:
        async with standing() as stand:
            assert stand.gateway.extproc is not None
            reader, writer = await asyncio.open_connection("127.0.0.1", stand.gateway.extproc.port)
            writer.write(PREFACE + frame(SETTINGS) + OPEN)
            writer.write(frame(DATA, END_STREAM, 1, b"\0\0\0\0\x05\xff\xff\xff\xff\xff"))
            told = await reader.readuntil(b"grpc-status\x013")
            writer.write(frame(PING, 0, 0, b"still on"))
            told += await reader.readuntil(b"still on")
            writer.close()
            assert b"grpc-message" in told

    run(scene())


# Examples of RFC 7541, appendix C.4 and C.6.
REQUESTS = ["828684418cf1e3c2e5f23a6ba0ab90f4ff", "828684be5886a8eb10649cbf"]
ANSWER = "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3"


def test_header_blocks_are_read_as_the_standard_has_them() -> None:
    decoder = HpackDecoder()
    first, second = (decoder.read(bytes.fromhex(block)) for block in REQUESTS)

    assert dict(first)[b":authority"] == b"www.example.com"
    assert second == [*first, (b"cache-control", b"no-cache")]
    assert dict(HpackDecoder().read(bytes.fromhex(ANSWER)))[b"date"] == b"Mon, 21 Oct 2013 20:13:21 GMT"


@pytest.mark.parametrize("coded", [b"\xff\xff\xff\xff", b"\x1b", b"\xf1\xe3\xff\xff\xff\xff"])
def test_a_string_with_a_wrong_ending_is_refused(coded: bytes) -> None:
    with pytest.raises(HpackError):
        decoded(coded)


def test_a_table_grows_no_further_than_was_offered() -> None:
    decoder = HpackDecoder()
    for number in range(500):
        decoder.read(b"\x40" + literal(b"n%d" % number, b"v" * 100)[1:])

    assert decoder.read(b"\xbe")[0][0] == b"n499"
    with pytest.raises(HpackError):
        decoder.read(bytes([0x80 | 0x7F, 61 + 40 - 127 + 128 & 0x7F]))

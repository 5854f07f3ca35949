"""Good answers, in every framing and in any pieces."""

import asyncio

import pytest

from http1.client.engine import (
    LAST_CHUNK,
    STREAM,
    Asked,
    Receiver,
    chunk,
    close,
    engine,
    run,
    saying,
    sized,
    until,
)
from millgate.http1.client import AnswerHead, UpstreamPool


def test_a_request_is_written_whole_with_the_clients_own_framing() -> None:
    async def body() -> None:
        async with engine(saying(sized())) as stand:
            await stand.ask(b"hello")
            host = b"127.0.0.1:%d" % stand.port
            expected = (
                b"POST /v1/x HTTP/1.1\r\nhost: "
                + host
                + b"\r\naccept-encoding: identity\r\nx-a: b\r\ncontent-length: 5\r\n\r\n"
            )
            assert (stand.asked[0].head, stand.asked[0].body) == (expected, b"hello")
            for method, ending in ((b"POST", b"content-length: 0\r\n\r\n"), (b"GET", b"x: y\r\n\r\n")):
                receiver = Receiver()
                stand.pool.request(method, b"/", [(b"x", b"y")], b"", receiver)
                await until(lambda receiver=receiver: receiver.over)  # type: ignore[misc]
                assert stand.asked[0].head.endswith(ending)

    run(body())


def test_a_sized_answer_is_handed_over_with_what_may_be_passed_on() -> None:
    async def body() -> None:
        lines = [
            b"X-A: 1",
            b"x-a:2",
            b"Connection: X-B",
            b"X-B: hop",
            b"Keep-Alive: timeout=5",
            b"Date: now",
            b"TE: x",
        ]
        async with engine(saying(sized(b"whole", *lines))) as stand:
            got = await stand.ask()
            assert got.head == AnswerHead(200, [(b"x-a", b"1"), (b"x-a", b"2")], 5)
            assert (got.body, got.ended) == (b"whole", [True])

    run(body())


def test_a_stream_is_handed_over_event_by_event() -> None:
    async def body() -> None:
        events = [b"data: %d\n\n" % n for n in range(5)]

        async def script(asked: Asked) -> None:
            assert await asked.request()
            await asked.say(STREAM)
            for event in events:
                await asked.say(chunk(event))
                await until(lambda event=event: event in receiver.data)  # type: ignore[misc]
            await asked.say(LAST_CHUNK)

        receiver = Receiver()
        async with engine(script) as stand:
            stand.send(receiver)
            await until(lambda: receiver.over)
            assert (receiver.data, receiver.ended) == (events, [True])
            assert receiver.head == AnswerHead(200, [(b"content-type", b"text/event-stream")], None)

    run(body())


WHOLE = {
    "sized": sized(b"whole"),
    "chunked": STREAM + chunk(b"who") + chunk(b"le") + LAST_CHUNK,
    "chunked with a trailer": STREAM + chunk(b"whole") + b"0\r\nX-Late: 1\r\n\r\n",
    "chunked with an extension": STREAM + b"5;a=b\r\nwhole\r\n" + LAST_CHUNK,
    "after informational answers": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    + sized(b"whole"),
}


@pytest.mark.parametrize("answer", WHOLE.values(), ids=WHOLE.keys())
@pytest.mark.parametrize("piece_bytes", [1, 7, 10_000])
def test_an_answer_is_the_same_in_any_pieces(answer: bytes, piece_bytes: int) -> None:
    async def body() -> None:
        pieces = [answer[n : n + piece_bytes] for n in range(0, len(answer), piece_bytes)]
        async with engine(saying(*pieces)) as stand:
            got = await stand.ask()
            assert (got.body, got.ended) == (b"whole", [True])
            assert got.head is not None
            assert b"x-late" not in dict(got.head.headers)

    run(body())


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\n\r\n",
        sized(b""),
        STREAM + LAST_CHUNK,
    ],
)
def test_an_answer_without_a_body_ends_without_data(answer: bytes) -> None:
    async def body() -> None:
        async with engine(saying(answer)) as stand:
            for _again in range(2):
                got = await stand.ask()
                assert (got.data, got.ended) == ([], [True])
            assert len(stand.asked) == 1

    run(body())


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_body_that_the_close_ends_is_said_to_be_undelimited(version: bytes) -> None:
    async def body() -> None:
        head = b"HTTP/" + version + b" 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        async with engine(saying(head, b"data: 1\n\n", b"data: 2\n\n", then=close)) as stand:
            got = await stand.ask()
            assert (got.body, got.ended) == (b"data: 1\n\ndata: 2\n\n", [False])

    run(body())


def test_head_is_over_with_its_head() -> None:
    async def body() -> None:
        async with engine(saying(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")) as stand:
            receiver = Receiver()
            stand.pool.request(b"HEAD", b"/", [], b"", receiver)
            await until(lambda: receiver.over)
            assert receiver.head == AnswerHead(200, [], 5)
            assert receiver.ended == [True]

    run(body())


def test_a_redirect_is_an_answer_like_any_other() -> None:
    async def body() -> None:
        async with engine(
            saying(sized(b"", b"Location: http://169.254.169.254/", status=b"302 Found"))
        ) as stand:
            got = await stand.ask()
            assert got.head is not None
            assert (got.head.status, len(stand.asked)) == (302, 1)

    run(body())


def test_an_early_answer_to_a_request_that_is_not_yet_read_is_handed_over() -> None:
    async def body() -> None:
        async def script(asked: Asked) -> None:
            await asked.reader.readuntil(b"\r\n\r\n")
            await asked.say(sized(b"no", status=b"413 Too Large"))
            await asked.hung_up()

        async with engine(script) as stand:
            got = await stand.ask(b"x" * 20_000_000)
            assert got.head is not None
            assert (got.head.status, got.body, got.ended) == (413, b"no", [True])
            assert stand.pool.kept == 0

    run(body())


def test_many_calls_run_at_once_and_each_gets_its_own_answer() -> None:
    async def body() -> None:
        async def script(asked: Asked) -> None:
            while await asked.request():
                await asked.say(STREAM, chunk(asked.body), LAST_CHUNK)

        async with engine(script) as stand:
            for _again in range(3):
                got = await asyncio.gather(*(stand.ask(b"%d" % n) for n in range(20)))
                assert [one.body for one in got] == [b"%d" % n for n in range(20)]
            assert len(stand.asked) == 20

    run(body())


@pytest.mark.parametrize(
    ("target", "header"),
    [
        (b"/a b", (b"x", b"y")),
        (b"/a\r\nevil: 1", (b"x", b"y")),
        (b"/", (b"x", b"y\r\nevil: 1")),
        (b"/", (b"x\n", b"y")),
        (b"/", (b"x", b"y\0")),
        (b"/", (b"host", b"y")),
        (b"/", (b"content-length", b"1")),
        (b"/", (b"connection", b"x")),
        (b"/", (b"transfer-encoding", b"chunked")),
    ],
)
def test_what_would_break_the_framing_is_refused_loudly(target: bytes, header: tuple[bytes, bytes]) -> None:
    pool = UpstreamPool("127.0.0.1", 1)
    for _again in range(2):
        with pytest.raises(ValueError, match=r"cannot be sent|by the wire alone"):
            pool.request(b"GET", target, [(b"a", b"b"), header], b"", Receiver())


@pytest.mark.parametrize(
    ("host", "port", "expected"),
    [("localhost", 80, b"localhost"), ("localhost", 8000, b"localhost:8000"), ("::1", 8000, b"[::1]:8000")],
)
def test_the_host_header_names_the_engine(host: str, port: int, expected: bytes) -> None:
    message = UpstreamPool(host, port)._message(b"GET", b"/", [], b"", is_long=False)
    assert message == b"GET / HTTP/1.1\r\nhost: " + expected + b"\r\naccept-encoding: identity\r\n\r\n"

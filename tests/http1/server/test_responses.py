"""What leaves as an answer: framing, order, and that a cut answer never looks whole (INV-10)."""

import asyncio
from collections.abc import Callable

import pytest

from http1.server.wire import Recorder, get, ignore, run, serving, until
from millgate.http1.server import Exchange

HEAD = get().replace(b"GET", b"HEAD")
OLD = get().replace(b"1.1", b"1.0")


def stream(
    *pieces: bytes, length: int | None = None, end: Callable[[Exchange], None] | None = None
) -> Recorder:
    """Make an application that streams these pieces and then finishes, or ends as it is told."""

    def answer(exchange: Exchange, _body: bytes) -> None:
        exchange.start(200, [(b"content-type", b"text/event-stream")], length=length)
        for piece in pieces:
            exchange.write(piece)
        if end is None:
            exchange.finish()
        else:
            end(exchange)

    return Recorder(answering=answer)


def test_a_streamed_answer_comes_in_chunks_and_keeps_the_connection() -> None:
    async def body() -> None:
        async with serving(stream(b"a", b"", b"bc" * 5000)) as stand:
            client = await stand.connect()
            for _again in range(2):
                client.send(get())
                got = await client.answer()
                assert got.body == b"a" + b"bc" * 5000
                assert got.headers["transfer-encoding"] == "chunked"
                assert "content-length" not in got.headers

    run(body())


def test_a_streamed_answer_of_known_length_is_sized() -> None:
    async def body() -> None:
        async with serving(stream(b"a", b"bc", length=3)) as stand:
            got = await stand.ask(get())
            assert (got.body, got.headers["content-length"]) == (b"abc", "3")
            assert "transfer-encoding" not in got.headers

    run(body())


def test_each_piece_leaves_at_once() -> None:
    """Nothing is buffered: the head and every event arrive before the next is written."""

    async def body() -> None:
        async with serving(Recorder(answering=ignore)) as stand:
            client = await stand.connect()
            client.send(get())
            await until(lambda: stand.application.exchanges)
            exchange = stand.application.exchanges[0]
            exchange.start(200, [])
            assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
            for event in (b"data: 1\n\n", b"data: 2\n\n"):
                exchange.write(event)
                assert await client.reader.readexactly(len(event) + 5) == b"9\r\n" + event + b"\r\n"
            exchange.finish()
            assert await client.reader.readexactly(5) == b"0\r\n\r\n"

    run(body())


def test_http_1_0_gets_its_stream_unframed_and_ended_by_the_close() -> None:
    async def body() -> None:
        async with serving(stream(b"a", b"b")) as stand:
            got = await stand.ask(OLD)
            assert got.body == b"ab"
            assert got.headers["connection"] == "close"
            assert not {"transfer-encoding", "content-length"} & got.headers.keys()

    run(body())


@pytest.mark.parametrize("application", [Recorder(), stream(b"abc"), stream(b"abc", length=3)])
def test_head_is_answered_without_a_body(application: Recorder) -> None:
    async def body() -> None:
        async with serving(application) as stand:
            client = await stand.connect()
            client.send(HEAD + HEAD)
            for _again in range(2):
                got = await client.answer(bodiless=True)
                assert got.status == 200
                assert {"transfer-encoding", "content-length"} & got.headers.keys()

    run(body())


@pytest.mark.parametrize("status", [204, 304])
def test_a_status_without_a_body_gets_none_and_no_length(status: int) -> None:
    async def body() -> None:
        async with serving(
            Recorder(answering=lambda exchange, _body: exchange.respond(status, [], b""))
        ) as stand:
            client = await stand.connect()
            client.send(get() + get())
            for _again in range(2):
                got = await client.answer()
                assert got.status == status
                assert "content-length" not in got.headers

    run(body())


def cut(exchange: Exchange) -> None:
    exchange.abort()


@pytest.mark.parametrize("length", [None, 100], ids=["chunked", "sized"])
@pytest.mark.parametrize("pieces", [(), (b"data: 1\n\n", b"data: error\n\n")], ids=["nothing", "events"])
def test_an_aborted_answer_is_not_whole_but_what_was_written_arrives(
    pieces: tuple[bytes, ...], length: int | None
) -> None:
    async def body() -> None:
        async with serving(stream(*pieces, length=length, end=cut)) as stand:
            got = await stand.ask(get())
            assert not got.whole
            if length is None:
                assert got.body == b"".join(pieces)

    run(body())


def test_an_aborted_answer_to_http_1_0_is_reset() -> None:
    """Only the close ends such an answer, hence a proper close would make the cut answer look whole."""

    async def body() -> None:
        async with serving(Recorder(answering=ignore)) as stand:
            client = await stand.connect()
            client.send(OLD)
            await until(lambda: stand.application.exchanges)
            exchange = stand.application.exchanges[0]
            exchange.start(200, [])
            exchange.write(b"half")
            await client.reader.readuntil(b"half")
            exchange.abort()
            with pytest.raises(ConnectionResetError):
                await client.reader.read()

    run(body())


def test_an_answer_that_is_aborted_before_its_start_sends_nothing() -> None:
    async def body() -> None:
        async with serving(Recorder(answering=lambda exchange, _body: exchange.abort())) as stand:
            client = await stand.connect()
            client.send(get())
            assert await client.rest() == b""
            assert not stand.application.gone

    run(body())


def test_a_sized_answer_that_ends_early_is_cut() -> None:
    async def body() -> None:
        async with serving(stream(b"abc", length=4)) as stand:
            assert not (await stand.ask(get())).whole

    run(body())


def refused(call: Callable[[Exchange], None], error: type[Exception]) -> None:
    """Check that a call on a fresh exchange raises, and that the client gets no broken answer by it."""

    async def body() -> None:
        seen: list[Exception] = []

        def answer(exchange: Exchange, _body: bytes) -> None:
            try:
                call(exchange)
            except Exception as fault:  # noqa: BLE001
                seen.append(fault)
            exchange.abort()

        async with serving(Recorder(answering=answer)) as stand:
            client = await stand.connect()
            client.send(get(b"/", b"Connection: close"))
            said = await client.rest()
        assert [type(fault) for fault in seen] == [error]
        assert b"evil" not in said

    run(body())


@pytest.mark.parametrize(
    "header",
    [
        (b"x", b"a\r\nevil: 1"),
        (b"x", b"a\nevil: 1"),
        (b"x", b"a\revil"),
        (b"x", b"a\0evil"),
        (b"x\r\nevil", b"a"),
        (b"content-length", b"1"),
        (b"transfer-encoding", b"chunked"),
        (b"connection", b"close"),
        (b"date", b"now"),
    ],
)
def test_a_header_that_would_break_the_framing_is_refused_loudly(header: tuple[bytes, bytes]) -> None:
    refused(lambda exchange: exchange.respond(200, [(b"a", b"b"), header], b""), ValueError)
    refused(lambda exchange: exchange.start(200, [header]), ValueError)


def test_calls_out_of_order_are_refused_loudly() -> None:
    def respond_twice(exchange: Exchange) -> None:
        exchange.respond(200, [], b"")
        exchange.respond(200, [], b"evil")

    def write_after_finish(exchange: Exchange) -> None:
        exchange.start(200, [])
        exchange.finish()
        exchange.write(b"evil")

    def write_too_much(exchange: Exchange) -> None:
        exchange.start(200, [], length=3)
        exchange.write(b"evil")

    refused(respond_twice, RuntimeError)
    refused(write_after_finish, RuntimeError)
    refused(lambda exchange: exchange.write(b"evil"), RuntimeError)
    refused(lambda exchange: exchange.finish(), RuntimeError)
    refused(write_too_much, ValueError)
    refused(lambda exchange: exchange.start(204, []), ValueError)
    refused(lambda exchange: exchange.respond(100, [], b"evil"), ValueError)


def test_the_date_is_there_and_moves() -> None:
    async def body() -> None:
        async with serving() as stand:
            first = (await stand.ask(get())).headers["date"]
            assert first.endswith(" GMT")
            await asyncio.sleep(1.2)
            assert (await stand.ask(get())).headers["date"] != first

    run(body())

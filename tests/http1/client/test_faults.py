"""Engines that break off, break the rules, or say nothing: each is one failure of the right kind."""

import asyncio
import socket
from collections.abc import Callable
from functools import partial

import pytest

from http1.client.engine import (
    LAST_CHUNK,
    STREAM,
    Receiver,
    Script,
    chunk,
    close,
    engine,
    reset,
    run,
    saying,
    sized,
    stay,
    until,
)
from millgate.core.words import FailureKind, Sent
from millgate.http1.client import UpstreamPool
from ports import free_port

HEAD = b"HTTP/1.1 200 OK\r\n"
VIOLATIONS = {
    "noise": b"\x00\x01\x02\x03",
    "a greeting": b"SSH-2.0-OpenSSH\r\n",
    "another protocol": b"HTTP/2.0 200 OK\r\n\r\n",
    "HTTP/0.9": b"<html>hello</html>",
    "a status of letters": b"HTTP/1.1 abc OK\r\n\r\n",
    "a status of two digits": b"HTTP/1.1 20 OK\r\n\r\n",
    "a status below the informational": b"HTTP/1.1 099 Odd\r\n\r\n" + sized(),
    "a status of no class": sized(b"hello", status=b"600 Odd"),
    "the last three digits": sized(b"hello", status=b"999 Odd"),
    "an empty line first": b"\r\n" + sized(),
    "lines ended by LF": b"HTTP/1.1 200 OK\nContent-Length: 1\n\nx",
    "a head ended by LF LF": HEAD + b"Content-Length: 1\n\nx",
    "a field without a colon": HEAD + b"nonsense\r\n\r\n",
    "a folded field": HEAD + b"A: b\r\n c\r\nContent-Length: 1\r\n\r\nx",
    "NUL in a field": HEAD + b"A: \x00\r\nContent-Length: 1\r\n\r\nx",
    "length and chunked": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + LAST_CHUNK,
    "chunked and length": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + LAST_CHUNK,
    "two lengths": HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "a negative length": HEAD + b"Content-Length: -1\r\n\r\n",
    "a length of 5,000 digits": HEAD + b"Content-Length: " + b"5".zfill(5_000) + b"\r\n\r\nhello",
    "a length of letters": HEAD + b"Content-Length: five\r\n\r\nhello",
    "another coding": HEAD + b"Transfer-Encoding: gzip\r\n\r\nhello",
    "two codings": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + LAST_CHUNK,
    "two codings in two fields": HEAD
    + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
    + LAST_CHUNK,
    "chunked twice": HEAD + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n" + LAST_CHUNK,
    "chunked on HTTP/1.0": b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + LAST_CHUNK,
    "a chunk size of letters": STREAM + b"zz\r\nhello\r\n",
    "a chunk that is too long": STREAM + b"5\r\nhelloo\r\n",
    "a chunk ended by LF": STREAM + b"5\r\nhello\n",
    "a chunk of 2^68 bytes": STREAM + b"f" * 17 + b"\r\n",
    "a bad chunk after good ones": STREAM + chunk(b"data: 1\n\n") + b"zz\r\n",
    "a switch of protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "65 informational answers": b"HTTP/1.1 103 Early Hints\r\n\r\n" * 65 + sized(),
    "a head of 70 KB": HEAD + b"A: b\r\n" * 12_000 + b"\r\n",
    "a field of 70 KB": HEAD + b"A: " + b"b" * 70_000 + b"\r\n\r\n",
    "a head without an end": HEAD + b"A: " + b"b" * 70_000,
    "trailers without an end": STREAM + chunk(b"a") + b"0\r\n" + b"A: b\r\n" * 30_000,
    "an extension without an end": STREAM + chunk(b"a") + b"5;" + b"a" * 150_000,
}


@pytest.mark.parametrize("said", VIOLATIONS.values(), ids=VIOLATIONS.keys())
def test_what_is_no_http_fails_the_call_and_closes_the_connection(said: bytes) -> None:
    async def body() -> None:
        async with engine(
            saying(*(said[n : n + 50_000] for n in range(0, len(said), 50_000)), then=stay)
        ) as stand:
            got = await stand.ask()
            assert got.failure == (FailureKind.PROTOCOL, Sent.REQUEST)
            assert not got.ended
            assert stand.pool.kept == 0
            await until(lambda: stand.pool.open == 0)

    run(body())


@pytest.mark.parametrize("said", [said for said in VIOLATIONS.values() if len(said) < 200])
def test_what_is_no_http_fails_too_when_it_comes_byte_by_byte(said: bytes) -> None:
    async def body() -> None:
        async with engine(saying(*(bytes((byte,)) for byte in said), then=stay)) as stand:
            assert (await stand.ask()).failure == (FailureKind.PROTOCOL, Sent.REQUEST)

    run(body())


def test_64_informational_answers_are_skipped() -> None:
    async def body() -> None:
        async with engine(saying(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 64, sized(b"whole"))) as stand:
            assert (await stand.ask()).body == b"whole"

    run(body())


CUTS = {
    "nothing": (),
    "half a head": (HEAD,),
    "an informational answer": (b"HTTP/1.1 100 Continue\r\n\r\n",),
    "a head": (HEAD + b"Content-Length: 5\r\n\r\n",),
    "half a sized body": (sized(b"hello")[:-1],),
    "a chunked head": (STREAM,),
    "half a chunk": (STREAM, chunk(b"data: 1\n\n")[:-4]),
    "chunks without the last": (STREAM, chunk(b"data: 1\n\n")),
    "half the last chunk": (STREAM, chunk(b"data: 1\n\n"), b"0\r\n"),
}


@pytest.mark.parametrize("said", CUTS.values(), ids=CUTS.keys())
@pytest.mark.parametrize("then", [close, reset])
def test_a_connection_lost_before_the_end_is_a_broken_answer(said: tuple[bytes, ...], then: Script) -> None:
    async def body() -> None:
        async with engine(saying(*said, then=then)) as stand:
            got = await stand.ask()
            assert got.failure == (FailureKind.BROKEN, Sent.REQUEST)
            assert not got.ended
            assert len(stand.asked) == 1

    run(body())


def test_a_body_until_the_close_is_broken_by_a_reset() -> None:
    async def body() -> None:
        async with engine(saying(HEAD + b"\r\n", b"data: 1\n\n", then=reset)) as stand:
            got = await stand.ask()
            assert got.failure == (FailureKind.BROKEN, Sent.REQUEST)
            assert not got.ended

    run(body())


def test_a_refused_connection_is_a_failure_to_connect() -> None:
    async def body() -> None:
        port = free_port()
        pool = UpstreamPool("127.0.0.1", port)
        receiver = Receiver()
        pool.request(b"GET", b"/", [], b"", receiver)
        assert not receiver.over
        await until(lambda: receiver.over)
        assert receiver.failure == (FailureKind.CONNECT, Sent.NONE)
        assert f"127.0.0.1:{port}" in receiver.failed[0][2]
        pool.close()

    run(body())


def test_a_name_that_does_not_resolve_is_a_failure_to_connect() -> None:
    async def body() -> None:
        pool = UpstreamPool("no-such-host.invalid", 80)
        receiver = Receiver()
        pool.request(b"GET", b"/", [], b"", receiver)
        await until(lambda: receiver.over)
        assert receiver.failure == (FailureKind.CONNECT, Sent.NONE)
        pool.close()

    run(body())


async def unanswering_port() -> tuple[list[socket.socket], int]:
    """Return the port of a listener whose backlog is full: connecting to it neither succeeds nor fails."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    sockets = [listener]
    for _n in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
        sockets.append(filler)
    await asyncio.sleep(0.05)
    return sockets, listener.getsockname()[1]


@pytest.mark.parametrize(
    ("connect_s", "head_s", "kind"), [(0.2, 9, FailureKind.CONNECT), (9, 0.2, FailureKind.TIMEOUT)]
)
def test_connecting_ends_at_its_deadline_or_at_the_calls(
    connect_s: float, head_s: float, kind: FailureKind
) -> None:
    async def body() -> None:
        sockets, port = await unanswering_port()
        from millgate.http1.client import UpstreamSettings

        pool = UpstreamPool("127.0.0.1", port, settings=UpstreamSettings(connect_s=connect_s))
        receiver = Receiver()
        pool.request(b"GET", b"/", [], b"", receiver).expire_at(soon(head_s))
        await until(lambda: receiver.over)
        assert receiver.failure == (kind, Sent.NONE)
        pool.close()
        await until(lambda: pool.open == 0)
        for sock in sockets:
            sock.close()

    run(body())


def soon(after_s: float) -> float:
    return asyncio.get_running_loop().time() + after_s


@pytest.mark.parametrize("said", [(), (HEAD,), (b"HTTP/1.1 103 Early Hints\r\n\r\n",)])
def test_a_head_that_does_not_come_by_its_deadline_is_a_timeout(said: tuple[bytes, ...]) -> None:
    async def body() -> None:
        async with engine(saying(*said, then=stay)) as stand:
            got = await stand.ask(expires_at=soon(0.2))
            assert got.failure == (FailureKind.TIMEOUT, Sent.REQUEST)

    run(body())


def test_informational_answers_do_not_move_the_deadline_of_the_head() -> None:
    async def body() -> None:
        async with engine(
            saying(*[b"HTTP/1.1 103 Early Hints\r\n\r\n"] * 1000), informational_answers=10_000
        ) as stand:
            got = await stand.ask(expires_at=soon(0.2))
            assert got.failure == (FailureKind.TIMEOUT, Sent.REQUEST)

    run(body())


def test_a_call_can_be_given_another_deadline_on_its_way() -> None:
    """An engine that answers 200 at once and then thinks is judged by its first event."""

    async def body() -> None:
        async with engine(saying(STREAM, then=stay)) as stand:
            receiver = Receiver()
            call = stand.send(receiver)
            await until(lambda: receiver.head)
            call.expire_at(soon(0.1))
            call.expire_at(None)
            await asyncio.sleep(0.3)
            assert not receiver.over
            call.expire_at(soon(0.1))
            await until(lambda: receiver.over)
            assert receiver.failure == (FailureKind.TIMEOUT, Sent.REQUEST)

    run(body())


@pytest.mark.parametrize("said", [(STREAM,), (STREAM, chunk(b"data: 1\n\n")), (sized(b"hello")[:-1],)])
def test_silence_in_the_middle_of_an_answer_is_a_timeout(said: tuple[bytes, ...]) -> None:
    async def body() -> None:
        async with engine(saying(*said, then=stay), chunk_idle_s=0.2) as stand:
            got = await stand.ask()
            assert got.failure == (FailureKind.TIMEOUT, Sent.REQUEST)
            assert got.head is not None

    run(body())


def test_thinking_before_the_head_is_no_silence() -> None:
    async def body() -> None:
        async with engine(saying(*[b""] * 200, sized(b"whole")), chunk_idle_s=0.1) as stand:
            assert (await stand.ask()).body == b"whole"

    run(body())


class Trigger(asyncio.Protocol):
    """Calls `act` while the loop reads its sockets, when something has come."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act

    def data_received(self, data: bytes) -> None:
        self._act()


async def answer_one(listening: socket.socket) -> socket.socket:
    """Accept a connection and answer the request that comes on it."""
    loop = asyncio.get_running_loop()
    peer, _ = await loop.sock_accept(listening)
    peer.setblocking(False)
    assert await loop.sock_recv(peer, 1024)
    peer.send(sized())
    return peer


@pytest.mark.parametrize("closes_first", [True, False])
def test_a_request_that_never_left_is_sent_again_though_it_may_not_be_repeated(closes_first: bool) -> None:
    """An engine closed a kept connection in the turn of the loop that asked it, and a response, which may not be made twice, was a 502."""

    async def body() -> None:
        first, second = Receiver(), Receiver()
        ours, theirs = socket.socketpair()
        with socket.create_server(("127.0.0.1", 0)) as listening, theirs:
            listening.setblocking(False)
            pool = UpstreamPool(*listening.getsockname())
            ask = partial(pool.request, b"POST", b"/", [], b"{}", may_retry=False)
            ask(first)
            peer = await answer_one(listening)
            await until(lambda: pool.kept)
            await asyncio.get_running_loop().create_connection(
                lambda: Trigger(partial(ask, second)), sock=ours
            )
            answering = asyncio.create_task(answer_one(listening))
            await asyncio.sleep(0)
            for act in (peer.close, partial(theirs.send, b"x"))[:: 1 if closes_first else -1]:
                act()
            await until(lambda: second.over)
            assert (second.body, second.failed) == (b"whole", [])
            (await answering).close()
            pool.close()

    run(body())

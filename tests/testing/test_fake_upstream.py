"""The scripted engine does what it is told, in a loop and in a thread, and writes down what it saw."""

import asyncio
import socket
import time
from collections.abc import Callable

import pytest
from lab.upstream import FakeUpstream, ScriptedConnection, answers

ASK = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\n\r\n" + b'{"stream":true}'


def until(truth: Callable[[], object]) -> None:
    by = time.monotonic() + 5
    while not truth():
        assert time.monotonic() < by
        time.sleep(0.002)


def read_all(client: socket.socket) -> bytes:
    got = b""
    while piece := client.recv(65536):
        got += piece
    return got


def test_it_answers_a_stream_and_remembers_the_request() -> None:
    async def body() -> bytes:
        async with FakeUpstream() as upstream:
            reader, writer = await asyncio.open_connection("127.0.0.1", upstream.port)
            writer.write(ASK)
            got = await reader.readuntil(answers.LAST_CHUNK)
            (request,) = upstream.received
            assert (request.method, request.header(b"host"), request.json()) == (
                b"POST",
                b"x",
                {"stream": True},
            )
            writer.close()
            return got

    assert answers.DONE in asyncio.run(body())


def test_it_serves_synchronous_tests_from_a_thread() -> None:
    with FakeUpstream() as upstream, socket.create_connection(("127.0.0.1", upstream.port)) as client:
        client.sendall(ASK[:40])
        client.sendall(ASK[40:])
        assert client.recv(15) == b"HTTP/1.1 200 Sc"
        assert upstream.connected == 1
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", upstream.port))


def test_a_script_can_send_slowly_and_close() -> None:
    async def script(line: ScriptedConnection) -> None:
        await line.send_slowly(b"slow", 1, 0.001)
        line.close()

    with FakeUpstream(script) as upstream, socket.create_connection(("127.0.0.1", upstream.port)) as client:
        client.sendall(ASK)
        assert read_all(client) == b"slow"
        assert upstream.sent_bytes == 4


def test_a_script_can_reset() -> None:
    async def script(line: ScriptedConnection) -> None:
        line.reset()

    with FakeUpstream(script) as upstream, socket.create_connection(("127.0.0.1", upstream.port)) as client:
        client.sendall(ASK)
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_a_script_can_speak_before_it_is_asked() -> None:
    async def garbage(line: ScriptedConnection) -> None:
        await line.send(b"SSH-2.0-engine\r\n")
        line.close()

    with (
        FakeUpstream(on_connect=garbage) as upstream,
        socket.create_connection(("127.0.0.1", upstream.port)) as client,
    ):
        assert read_all(client) == b"SSH-2.0-engine\r\n"
        assert upstream.received == []


def test_a_hang_up_ends_the_script_and_is_counted_once() -> None:
    async def script(line: ScriptedConnection) -> None:
        await line.stall()

    with FakeUpstream(script) as upstream:
        with socket.create_connection(("127.0.0.1", upstream.port)) as client:
            client.sendall(ASK)
            until(lambda: upstream.answering == 1)
        until(lambda: upstream.aborted == 1)
        until(lambda: not upstream.lines)
        assert upstream.answering == 0


def test_a_peer_that_does_not_read_holds_the_script_back() -> None:
    async def script(line: ScriptedConnection) -> None:
        for _ in range(1000):
            await line.send(b"x" * 65536)

    with FakeUpstream(script) as upstream:
        with socket.create_connection(("127.0.0.1", upstream.port)) as client:
            client.sendall(ASK)
            until(lambda: upstream.sent_bytes > 0)
            time.sleep(0.05)
            assert upstream.sent_bytes < 20_000_000
        until(lambda: not upstream.lines)


def test_scrapes_are_answered_aside() -> None:
    async def scrape(line: ScriptedConnection) -> None:
        await line.send(answers.whole(b"gauge 1\n", 200, "text/plain"))

    with (
        FakeUpstream(on_scrape=scrape) as upstream,
        socket.create_connection(("127.0.0.1", upstream.port)) as client,
    ):
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert b"200" in client.recv(65536)
        assert (upstream.scrapes, upstream.received) == (1, [])
        upstream.forget()
        assert upstream.scrapes == 0


def test_cut_ends_what_is_open_and_the_server_goes_on() -> None:
    with FakeUpstream() as upstream:
        with socket.create_connection(("127.0.0.1", upstream.port)) as client:
            until(lambda: upstream.lines)
            upstream.on_loop(upstream.cut)
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        with socket.create_connection(("127.0.0.1", upstream.port)) as client:
            client.sendall(ASK)
            assert client.recv(8) == b"HTTP/1.1"

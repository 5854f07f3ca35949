"""The demos' own user: what it reads of an answer, byte by byte as well as at once."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from millgate.demos.connection import AttemptAnswer, Endpoint, GateAddress

EVENTS = (
    b'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"tok tok"},"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n',
    b"data: [DONE]\n\n",
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\nRetry-After: 4\r\nretry-after-ms: 3200\r\n"
    b"x-should-retry: false\r\nx-millgate-reason: queue_full\r\n\r\n{}"
)

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def _chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)


def _with_server(
    serve: Serve, talk: Callable[[Endpoint], Awaitable[list[AttemptAnswer]]]
) -> list[AttemptAnswer]:
    """Talk to a server of this kind, and leave no connection or task of it behind."""
    serving: set[asyncio.Task[None]] = set()

    async def tidy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(cast("asyncio.Task[None]", asyncio.current_task()))
        with contextlib.suppress(ConnectionError):
            await serve(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def run() -> list[AttemptAnswer]:
        async with await asyncio.start_server(tidy, "127.0.0.1", 0) as server:
            endpoint = Endpoint(GateAddress("127.0.0.1", server.sockets[0].getsockname()[1]))
            try:
                return await talk(endpoint)
            finally:
                endpoint.close()
                await asyncio.gather(*serving)

    return asyncio.run(run())


async def _read_request(reader: asyncio.StreamReader) -> bool:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return False
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    await reader.readexactly(length)
    return True


def _answering(*parts: bytes, closing: bool = False) -> tuple[Serve, list[int]]:
    """A server that answers every request with these writes; the list counts its connections."""
    connections: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        while await _read_request(reader):
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
            if closing:
                break

    return serve, connections


def _asked(times: int = 1, patience_s: float = 5.0) -> Callable[[Endpoint], Awaitable[list[AttemptAnswer]]]:
    async def talk(endpoint: Endpoint) -> list[AttemptAnswer]:
        return [await endpoint.ask(b'{"n":1}', patience_s) for _ in range(times)]

    return talk


def test_a_whole_stream_is_whole_and_its_first_token_comes_before_its_end() -> None:
    serve, _ = _answering(HEAD, _chunked(*EVENTS), _chunked(b""))

    (answer,) = _with_server(serve, _asked())

    assert answer.status == 200
    assert answer.whole
    assert answer.first_token_at is not None
    assert answer.first_token_at <= answer.ended_at


def test_a_stream_torn_into_single_bytes_reads_the_same() -> None:
    whole = HEAD + _chunked(*EVENTS) + _chunked(b"")
    serve, _ = _answering(*(whole[at : at + 1] for at in range(len(whole))))

    first, second = _with_server(serve, _asked(times=2))

    assert first.whole
    assert second.whole


def test_a_role_event_without_content_is_no_first_token() -> None:
    serve, _ = _answering(HEAD, _chunked(EVENTS[0], EVENTS[2], EVENTS[3]), _chunked(b""))

    (answer,) = _with_server(serve, _asked())

    assert answer.first_token_at is None
    assert answer.whole


@pytest.mark.parametrize(
    "body",
    [
        _chunked(EVENTS[1], EVENTS[2]) + _chunked(b""),
        _chunked(EVENTS[1], EVENTS[3]) + _chunked(b""),
        _chunked(EVENTS[1], EVENTS[2], EVENTS[3]),
        _chunked(EVENTS[1], b'data: {"choices":[{"delta":{},"finish_reason":"abort"}]}\n\n', EVENTS[3])
        + _chunked(b""),
    ],
    ids=["no [DONE]", "no finish reason", "cut", "aborted"],
)
def test_a_broken_stream_is_never_whole(body: bytes) -> None:
    serve, _ = _answering(HEAD, body, closing=True)

    (answer,) = _with_server(serve, _asked())

    assert answer.first_token_at is not None
    assert not answer.whole


def test_a_refusal_carries_its_hint_reason_and_whether_to_retry_and_keeps_the_connection() -> None:
    serve, connections = _answering(REFUSAL)

    first, second = _with_server(serve, _asked(times=2))

    assert (first.status, first.hint_s, first.retry, first.reason) == (503, 3.2, False, "queue_full")
    assert second.status == 503
    assert len(connections) == 1


def test_a_user_without_a_token_hangs_up_after_its_patience() -> None:
    serve, _ = _answering(HEAD, _chunked(EVENTS[0]))

    (answer,) = _with_server(serve, _asked(patience_s=0.05))

    assert answer.hung_up
    assert not answer.whole


def test_a_user_with_a_token_waits_for_the_end() -> None:
    """The stream pauses for longer than the patience after its first token."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _read_request(reader)
        writer.write(HEAD + _chunked(EVENTS[1]))
        await asyncio.sleep(0.3)
        writer.write(_chunked(EVENTS[2], EVENTS[3]) + _chunked(b""))

    (answer,) = _with_server(serve, _asked(patience_s=0.2))

    assert not answer.hung_up
    assert answer.whole


def test_a_dead_kept_connection_is_replaced() -> None:
    """The server closes after each answer without saying so."""
    serve, connections = _answering(REFUSAL, closing=True)

    answers = _with_server(serve, _asked(times=3))

    assert [answer.status for answer in answers] == [503, 503, 503]
    assert len(connections) >= 3


def test_another_dialect_is_asked_under_its_path() -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(REFUSAL)

    async def talk(endpoint: Endpoint) -> list[AttemptAnswer]:
        other = Endpoint(endpoint.address, "/v1/messages")
        answers = [await other.ask(b"{}", 5.0)]
        other.close()
        return answers

    (answer,) = _with_server(serve, talk)

    assert answer.status == 503
    assert asked == [b"POST /v1/messages HTTP/1.1\r\n"]


def test_a_server_that_is_not_there_is_no_answer() -> None:
    answer = asyncio.run(Endpoint(GateAddress("127.0.0.1", 1)).ask(b"{}", 1.0))

    assert answer.status == 0
    assert not answer.hung_up


def test_what_is_not_http_is_no_answer() -> None:
    serve, _ = _answering(b"HTTP\r\n\r\n")

    (answer,) = _with_server(serve, _asked())

    assert answer.status == 0

"""A client that reads nothing before it has sent its whole body, as asynchronous SDKs do, reads why that was refused."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from http1.server.wire import Client, Recorder, post, run, serving, until
from millgate.http1.server import RefusedRequest, RequestHead

TEAPOT = RefusedRequest(418, [], b"no")
_PIECE = b"x" * 65_536


def refuse(_head: RequestHead) -> RefusedRequest:
    return TEAPOT


async def sent(client: Client, size_bytes: int) -> AsyncIterator[int]:
    """Send so much piece by piece, reading nothing."""
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    for begin in range(0, size_bytes, len(_PIECE)):
        client.send(_PIECE)
        await client.writer.drain()
        yield begin
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_known", [False, True])
def test_a_client_that_first_sends_all_of_a_large_body_reads_why_it_was_refused(is_known: bool) -> None:
    """The answer was destroyed by a reset a second later: a wrong key with a recording was `Connection error.`"""

    async def body() -> None:
        async with serving(Recorder(judging=refuse) if is_known else None, body_bytes=1_000_000) as stand:
            client = await stand.connect()
            client.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 20000000\r\n\r\n")
            async for _ in sent(client, 20_000_000):
                pass
            got = await client.answer()
            assert got.status == (418 if is_known else 413)
            assert got.headers["connection"] == "close"
        assert stand.server.budget.held_bytes == 0

    run(body())


def test_a_refused_body_that_dribbles_in_is_let_go_when_a_body_would_be() -> None:
    async def body() -> None:
        async with serving(Recorder(judging=refuse), body_s=0.5, linger_s=0.3) as stand:
            client = await stand.connect()
            client.send(post(b"x" * 100_000)[:1000])
            for _ in range(40):
                client.send(b"x")
                await asyncio.sleep(0.05)
                if not stand.server.connections:
                    break
            assert not stand.server.connections

    run(body())


def test_a_body_that_was_too_slow_already_gets_no_more_time() -> None:
    async def body() -> None:
        async with serving(body_s=0.3, linger_s=0.1) as stand:
            client = await stand.connect()
            client.send(post(b"x" * 100_000)[:1000])
            assert (await client.answer()).status == 408
            client.send(b"x")
            await until(lambda: stand.server.connections == 0)

    run(body())


def test_of_a_refused_body_without_end_a_bounded_part_is_read() -> None:
    async def body() -> None:
        async with serving(Recorder(judging=refuse), refused_bytes=1_000_000, linger_s=0.2) as stand:
            client = await stand.connect()
            client.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                async for sent_bytes in sent(client, 1_000_000_000):
                    assert sent_bytes < 100_000_000
            await until(lambda: stand.server.connections == 0)

    run(body())

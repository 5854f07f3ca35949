"""A client that leaves is noticed at once, once, and wherever its request stands."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from http1.server.wire import Client, Recorder, Stand, get, ignore, post, run, serving, until


async def reset(client: Client) -> None:
    client.hang_up()


async def close(client: Client) -> None:
    await client.close()


async def half_close(client: Client) -> None:
    client.writer.write_eof()


Leaving = Callable[[Client], Awaitable[None]]
leaving_in_every_way = pytest.mark.parametrize("leave", [reset, close, half_close])


async def waiting(stand: Stand) -> Client:
    """Connect a client whose request is being answered."""
    client = await stand.connect()
    client.send(post(b"hello"))
    await until(lambda: stand.application.exchanges)
    return client


@leaving_in_every_way
def test_a_hang_up_while_the_request_waits_is_told_once(leave: Leaving) -> None:
    async def body() -> None:
        async with serving(Recorder(answering=ignore)) as stand:
            client = await waiting(stand)
            await leave(client)
            await until(lambda: stand.application.gone)
            await until(lambda: stand.server.connections == 0)
            exchange = stand.application.exchanges[0]
            assert stand.application.gone == [exchange]
            exchange.respond(200, [], b"too late")
            exchange.abort()
            assert stand.server.budget.held_bytes == 0

    run(body())


@leaving_in_every_way
def test_a_hang_up_in_the_middle_of_a_stream_is_told_once(leave: Leaving) -> None:
    async def body() -> None:
        async with serving(Recorder(answering=ignore)) as stand:
            client = await waiting(stand)
            exchange = stand.application.exchanges[0]
            exchange.start(200, [])
            exchange.write(b"data: 1\n\n")
            await client.reader.readuntil(b"\n\n")
            await leave(client)
            await until(lambda: stand.application.gone)
            exchange.write(b"data: 2\n\n")
            exchange.finish()
            assert stand.application.gone == [exchange]

    run(body())


def test_a_hang_up_is_noticed_behind_pipelined_bytes() -> None:
    async def body() -> None:
        async with serving(Recorder(answering=ignore)) as stand:
            client = await waiting(stand)
            client.send(get(b"/2") * 10)
            await client.close()
            await until(lambda: stand.application.gone)
            assert len(stand.application.heads) == 1

    run(body())


def test_a_hang_up_of_a_client_that_has_stopped_reading_is_noticed() -> None:
    async def body() -> None:
        async with serving(Recorder(answering=ignore)) as stand:
            client = await stand.connect(receive_bytes=4096)
            client.send(get())
            await until(lambda: stand.application.exchanges)
            exchange = stand.application.exchanges[0]
            exchange.start(200, [])
            while not stand.application.slow:
                exchange.write(b"x" * 10_000)
                await asyncio.sleep(0)
            client.hang_up()
            await until(lambda: stand.application.gone)

    run(body())


@leaving_in_every_way
def test_a_client_that_leaves_between_requests_is_nobody_gone(leave: Leaving) -> None:
    async def body() -> None:
        async with serving() as stand:
            client = await stand.connect()
            client.send(get())
            await client.answer()
            await leave(client)
            await until(lambda: stand.server.connections == 0)
            assert not stand.application.gone

    run(body())


@leaving_in_every_way
@pytest.mark.parametrize("sent_bytes", [1, 20, 60])
def test_a_client_that_leaves_within_its_request_never_reaches_the_application(
    leave: Leaving, sent_bytes: int
) -> None:
    async def body() -> None:
        async with serving() as stand:
            client = await stand.connect()
            client.send(post(b"hello" * 20)[:sent_bytes])
            await asyncio.sleep(0.01)
            await leave(client)
            await until(lambda: stand.server.connections == 0)
            assert not stand.application.bodies
            assert stand.server.budget.held_bytes == 0

    run(body())


def test_every_open_exchange_is_gone_when_the_server_closes() -> None:
    async def body() -> None:
        async with serving(Recorder(answering=ignore)) as stand:
            await waiting(stand)
            await stand.server.close()
            assert stand.application.gone == stand.application.exchanges

    run(body())

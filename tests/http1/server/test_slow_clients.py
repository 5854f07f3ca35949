"""A client that reads slowly is told of, holds little, and gets everything when it reads on."""

import asyncio

from http1.server.wire import Client, Recorder, Stand, get, ignore, run, serving, until

PIECE = b"x" * 1000


async def stalled(stand: Stand) -> tuple[Client, int]:
    """Stream to a client that does not read, until it is called slow; return how much was written."""
    client = await stand.connect(receive_bytes=4096)
    client.send(get())
    await until(lambda: stand.application.exchanges)
    exchange = stand.application.exchanges[0]
    exchange.start(200, [])
    written_bytes = 0
    while not stand.application.slow:
        exchange.write(PIECE)
        written_bytes += len(PIECE)
        await asyncio.sleep(0)
    return client, written_bytes


def test_a_stalled_reader_is_told_of_within_kilobytes() -> None:
    """Buffer, kernel and the client's own window together: other servers take four megabytes."""

    async def body() -> None:
        async with serving(Recorder(answering=ignore)) as stand:
            _client, written_bytes = await stalled(stand)
            assert written_bytes < 400_000

    run(body())


def test_a_reader_that_catches_up_is_told_of_and_misses_nothing() -> None:
    async def body() -> None:
        async with serving(Recorder(answering=ignore)) as stand:
            client, written_bytes = await stalled(stand)
            reading = asyncio.ensure_future(client.answer())
            await until(lambda: stand.application.slow == [True, False])
            exchange = stand.application.exchanges[0]
            exchange.write(b"end")
            exchange.finish()
            got = await reading
            assert got.whole
            assert len(got.body) == written_bytes + 3

    run(body())


def test_the_next_request_waits_until_the_answer_before_has_left() -> None:
    """Else a client that never reads could have any number of answers made for it."""

    async def body() -> None:
        async with serving(
            Recorder(answering=lambda exchange, _body: exchange.respond(200, [], b"x" * 1_000_000))
        ) as stand:
            client = await stand.connect(receive_bytes=4096)
            client.send(get() * 20)
            await asyncio.sleep(0.05)
            assert len(stand.application.bodies) == 1
            for _answer in range(20):
                assert len((await client.answer()).body) == 1_000_000

    run(body())


def test_a_slow_client_that_is_cut_does_not_get_a_whole_answer() -> None:
    async def body() -> None:
        async with serving(Recorder(answering=ignore)) as stand:
            client, _written_bytes = await stalled(stand)
            stand.application.exchanges[0].abort()
            await until(lambda: stand.server.connections == 0)
            assert not (await client.rest()).endswith(b"0\r\n\r\n")

    run(body())

"""Deadlines, with settings of tenths of seconds."""

import asyncio
from typing import Any

from http1.server.wire import Recorder, chunked, get, ignore, post, run, serving, until
from millgate.http1.server import Exchange, RefusedRequest


def test_a_head_that_trickles_is_refused_at_an_absolute_deadline() -> None:
    async def body() -> None:
        async with serving(head_s=0.3) as stand:
            client = await stand.connect()
            reading = asyncio.ensure_future(client.answer())
            for byte in get(b"/" + b"a" * 1000):
                client.send(bytes((byte,)))
                await asyncio.sleep(0.02)
                if reading.done():
                    break
            got = reading.result()
            assert (got.status, got.body) == (
                408,
                b"request_timeout: the request header did not come within 0.3 s",
            )
            assert not stand.application.heads

    run(body())


def test_a_connection_without_a_request_is_refused_at_the_deadline_of_heads() -> None:
    async def body() -> None:
        async with serving(head_s=0.1) as stand:
            client = await stand.connect()
            assert (await client.answer()).status == 408
            assert await client.rest() == b""

    run(body())


def test_a_body_that_trickles_is_refused() -> None:
    async def body() -> None:
        for request in (post(b"x" * 1000), chunked(*[b"x"] * 300)):
            async with serving(body_s=0.2) as stand:
                client = await stand.connect()
                reading = asyncio.ensure_future(client.answer())
                for byte in request:
                    client.send(bytes((byte,)))
                    await asyncio.sleep(0.01)
                    if reading.done():
                        break
                assert reading.result().status == 408
                assert not stand.application.bodies

    run(body())


def test_a_body_that_comes_fast_enough_earns_more_time() -> None:
    async def body() -> None:
        async with serving(body_s=0.1, body_rate=1000) as stand:
            client = await stand.connect()
            request = post(b"x" * 1000)
            client.send(request[:-1])
            await asyncio.sleep(0.5)
            client.send(request[-1:])
            assert (await client.answer()).status == 200

    run(body())


def test_an_idle_connection_is_closed_without_a_word() -> None:
    async def body() -> None:
        async with serving(idle_s=0.1) as stand:
            client = await stand.connect()
            client.send(get())
            await client.answer()
            assert await client.rest() == b""

    run(body())


def test_a_request_being_answered_has_no_deadline_of_the_wire() -> None:
    async def body() -> None:
        async with serving(
            Recorder(answering=ignore), head_s=0.1, body_s=0.1, idle_s=0.1, linger_s=0.1
        ) as stand:
            client = await stand.connect()
            client.send(post(b"hello"))
            await asyncio.sleep(0.5)
            stand.application.exchanges[0].respond(200, [], b"late")
            assert (await client.answer()).body == b"late"

    run(body())


def test_a_client_that_reads_nothing_is_cut_and_gone() -> None:
    async def body() -> None:
        async with serving(Recorder(answering=ignore), write_stall_s=0.2) as stand:
            client = await stand.connect(receive_bytes=4096)
            client.send(get())
            await until(lambda: stand.application.exchanges)
            exchange = stand.application.exchanges[0]
            exchange.start(200, [])
            while not stand.application.slow:
                exchange.write(b"x" * 10_000)
            await until(lambda: stand.application.gone)
            assert stand.application.slow == [True]

    run(body())


def test_a_client_that_does_not_read_its_whole_answer_is_cut_too() -> None:
    async def body() -> None:
        def answer(exchange: Exchange, _body: bytes) -> None:
            exchange.respond(200, [], b"x" * 10_000_000)

        async with serving(Recorder(answering=answer), write_stall_s=0.2) as stand:
            client = await stand.connect(receive_bytes=4096)
            client.send(get() + get())
            await until(lambda: stand.server.connections == 0)
            assert len(stand.application.bodies) == 1

    run(body())


def test_a_deadline_that_cannot_be_acted_on_cuts_its_connection_and_keeps_no_other_waiting() -> None:
    """What raised at every look was first at every look, and no connection behind it was ever looked at again."""

    async def body() -> None:
        async with serving(head_s=0.2) as stand:
            faults: list[type[BaseException]] = []
            asyncio.get_running_loop().set_exception_handler(
                lambda _loop, context: faults.append(type(context["exception"]))
            )
            honest = stand.application.bad_request

            def bad_request(*given: Any) -> RefusedRequest:
                if len(faults) < 2:
                    raise ZeroDivisionError
                return honest(*given)

            stand.application.bad_request = bad_request  # type: ignore[method-assign, assignment]
            clients = [await stand.connect() for _ in range(5)]
            ends = [await client.rest() for client in clients]
            assert sorted(b" 408 " in end for end in ends) == [False, False, True, True, True]
            assert faults == [ZeroDivisionError] * 2
            await until(lambda: stand.server.connections == 0)

    run(body())

"""Bounds on bodies, connections and bytes held over all of them; and the drain."""

import asyncio

import pytest

from http1.server.wire import Recorder, chunked, get, ignore, post, run, serving, until
from millgate.http1.server import ByteBudget, Exchange


def test_a_body_over_the_cap_is_refused_by_its_length_before_it_is_read() -> None:
    async def body() -> None:
        async with serving(body_bytes=1000) as stand:
            assert (await stand.ask(post(b"x" * 1000))).status == 200
            head = post(b"x" * 1001).partition(b"\r\n\r\n")[0]
            got = await stand.ask(head + b"\r\n\r\n")
            assert (got.status, got.body) == (
                413,
                b"body_too_large: the request body is limited to 1000 bytes",
            )
            assert len(stand.application.bodies) == 1

    run(body())


def test_a_chunked_body_over_the_cap_is_refused_at_the_cap() -> None:
    async def body() -> None:
        async with serving(body_bytes=1000) as stand:
            assert (await stand.ask(chunked(b"x" * 500, b"x" * 500))).status == 200
            got = await stand.ask(chunked(b"x" * 500, b"x" * 501, ending=b""))
            assert got.status == 413
            assert len(stand.application.bodies) == 1

    run(body())


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"8000000000000000\r\n", 400),
        (b"8000000000000000\r\nhello", 400),
        (b"3e9;x=y\r\nhello", 413),
        (b"5\r\nhello\r\n00003e9\r\n", 413),
    ],
)
@pytest.mark.parametrize("cut", [0, 1, 3, 5])
def test_a_chunk_that_can_never_fit_is_refused_at_its_head(head: bytes, status: int, cut: int) -> None:
    """Nobody waits for its bytes; the head may come in two reads."""

    async def body() -> None:
        async with serving(body_bytes=1000) as stand:
            request = chunked(b"\r\nffffffffffffffff\r\n", ending=b"")
            client = await stand.connect()
            client.send(request + head[: len(head) - cut])
            await asyncio.sleep(0.01)
            client.send(head[len(head) - cut :])
            assert (await client.answer()).status == status

    run(body())


def test_a_chunk_as_long_as_a_body_may_be_is_taken() -> None:
    async def body() -> None:
        async with serving(body_bytes=1000) as stand:
            assert (await stand.ask(chunked(b"\r\nffffffffffffffff\r\n" * 47 + b"x" * 60))).status == 200

    run(body())


def test_chunks_that_are_mostly_framing_are_refused() -> None:
    async def body() -> None:
        async with serving() as stand:
            small = chunked(*[b"x"] * 50_000)
            assert len((await stand.ask(small)).body) == 50_007
            got = await stand.ask(chunked(b"x", ending=b"1;" + b"a" * 200_000 + b"\r\nx\r\n"))
            assert (got.status, got.body) == (400, b"invalid_request: more chunk framing than body")
            got = await stand.ask(chunked(b"x", ending=b"0\r\n" + b"A: b\r\n" * 50_000))
            assert got.status == 400

    run(body())


def test_a_large_body_in_many_reads_arrives_whole() -> None:
    async def body() -> None:
        text = bytes(range(256)) * 20_000
        async with serving() as stand:
            client = await stand.connect()
            for request in (post(text), chunked(text[:3_000_000], text[3_000_000:]), post(text)):
                client.send(request)
                await client.answer()
            assert stand.application.bodies == [text] * 3

    run(body())


def test_bodies_being_received_and_held_share_one_budget() -> None:
    async def body() -> None:
        budget = ByteBudget(1000)
        async with serving(Recorder(answering=ignore), budget=budget) as stand:
            first = await stand.connect()
            first.send(post(b"x" * 600))
            await until(lambda: stand.application.exchanges)
            assert budget.held_bytes == 600
            second = await stand.connect()
            second.send(post(b"x" * 150))
            await until(lambda: budget.held_bytes == 750)
            for request in (post(b"x"), chunked(b"x"), chunked(b"x", ending=b"")):
                got = await stand.ask(request)
                assert (got.status, got.headers["connection"]) == (503, "close")
            assert (await stand.ask(get(b"/", b"Expect: 200-ok"))).status == 417
            stand.application.exchanges[0].respond(200, [], b"")
            assert budget.held_bytes == 150
            second.hang_up()
            await until(lambda: budget.held_bytes == 0)

    run(body())


@pytest.mark.parametrize("ending", ["respond", "abort", "gone", "cut"])
def test_the_budget_is_whole_again_however_an_exchange_ends(ending: str) -> None:
    async def body() -> None:
        async with serving(Recorder(answering=ignore)) as stand:
            client = await stand.connect()
            client.send(chunked(b"x" * 100))
            await until(lambda: stand.application.exchanges)
            exchange = stand.application.exchanges[0]
            assert stand.server.budget.held_bytes == 100
            if ending == "respond":
                exchange.respond(200, [], b"")
            elif ending == "abort":
                exchange.abort()
            elif ending == "gone":
                client.hang_up()
            else:
                exchange.start(200, [], length=5)
                exchange.finish()
            await until(lambda: stand.server.budget.held_bytes == 0)

    run(body())


def test_a_length_that_is_announced_takes_no_room_until_its_bytes_come() -> None:
    async def body() -> None:
        budget = ByteBudget(1000)
        async with serving(budget=budget) as stand:
            idle = [await stand.connect() for _ in range(8)]
            for client in idle:
                client.send(post(b"x" * 700)[:-699])
            await until(lambda: budget.held_bytes == 8)
            assert (await stand.ask(post(b"x" * 700))).status == 200
            assert (await stand.ask(post(b"x" * 748))).status == 503
            idle[0].send(b"x" * 699)
            assert (await idle[0].answer()).status == 200

    run(body())


def test_a_body_for_which_there_is_never_room_is_not_told_to_try_again() -> None:
    """Of a small budget one peer may hold three quarters: a larger body was told to try again soon, for ever."""

    async def body() -> None:
        async with serving(budget=ByteBudget(1000)) as stand:
            for request in (post(b"x" * 751), chunked(b"x" * 751)):
                got = await stand.ask(request)
                assert got.status == 413
                assert b"limited to 750 bytes" in got.body
            assert (await stand.ask(post(b"x" * 750))).status == 200

    run(body())


def test_bodies_that_outgrow_the_share_while_they_come_are_refused_and_make_room() -> None:
    async def body() -> None:
        budget = ByteBudget(1000)
        async with serving(budget=budget) as stand:
            first, second = await stand.connect(), await stand.connect()
            for client in (first, second):
                client.send(post(b"x" * 450)[:-250])
            await until(lambda: budget.held_bytes == 400)
            first.send(b"x" * 249)
            await until(lambda: budget.held_bytes == 649)
            second.send(b"x" * 249)
            late = await second.answer()
            assert (late.status, late.headers["connection"]) == (503, "close")
            first.send(b"x")
            assert (await first.answer()).status == 200

    run(body())


def test_a_tenant_alone_has_half_of_the_budget_and_the_next_one_finds_room() -> None:
    budget = ByteBudget(1200)
    greedy, other = budget.share("a", "10.0.0.1"), budget.share("b", "10.0.0.1")
    assert not greedy.reserve(601)
    assert [greedy.reserve(60) for _ in range(11)] == [True] * 10 + [False]
    assert other.reserve(300)
    assert not other.reserve(1)
    assert budget.share("", "10.0.0.2").fits(225)
    assert not budget.share("", "10.0.0.2").fits(226)
    for share, size_bytes in ((greedy, 600), (other, 300)):
        share.release(size_bytes)
    assert (budget.held_bytes, budget.tenants, budget.peers) == (0, {}, {})


def test_what_a_share_holds_counts_in_the_whole_and_the_other_way_round() -> None:
    budget = ByteBudget(1000)
    share = budget.share("a", "")
    assert share.reserve(500)
    assert budget.reserve(500)
    assert not budget.reserve(1)
    assert not share.reserve(1)
    share.release(500)
    budget.release(500)
    assert budget.held_bytes == 0


def test_a_piece_is_taken_if_its_rest_could_follow_when_what_is_whole_has_gone() -> None:
    budget = ByteBudget(1000)
    share = budget.share("a", "10.0.0.1")
    assert share.most_bytes == 500
    assert budget.share("", "10.0.0.1").most_bytes == 750
    assert share.reserve(300)
    assert not share.reserve(100, 101)
    share.settle(300)
    assert share.reserve(100, 101)
    assert share.reserve(100)
    assert not share.reserve(1), "whole or not, it is here"
    share.settle(-300)
    share.release(500)
    assert (budget.held_bytes, budget.tenants, budget.peers, budget.whole) == (0, {}, {}, {})


def test_a_budget_refuses_a_negative_limit() -> None:
    with pytest.raises(ValueError, match="limit_bytes is -1"):
        ByteBudget(-1)


def test_a_connection_over_the_cap_gets_503_and_the_others_go_on() -> None:
    async def body() -> None:
        async with serving(connections=2, linger_s=0.1) as stand:
            first, second = await stand.connect(), await stand.connect()
            first.send(get())
            assert (await first.answer()).status == 200
            third = await stand.connect()
            third.send(get())
            got = await third.answer()
            assert (got.status, got.headers["connection"]) == (503, "close")
            assert await third.rest() == b""
            assert stand.server.refused_connections == 1
            second.send(get())
            assert (await second.answer()).status == 200
            assert len(stand.application.bodies) == 2

    run(body())


def test_a_flood_of_connections_over_the_cap_leaves_nothing_behind() -> None:
    async def body() -> None:
        async with serving(connections=2, linger_s=0.1) as stand:
            clients = [await stand.connect() for _n in range(120)]
            for client in clients[2:]:
                assert (await client.rest()).startswith(b"HTTP/1.1 503 ")
            await until(lambda: stand.server.connections == 2)
            clients[0].send(get())
            assert (await clients[0].answer()).status == 200

    run(body())


def test_a_drain_closes_idle_connections_and_lets_requests_end() -> None:
    async def body() -> None:
        def answer(exchange: Exchange, _body: bytes) -> None:
            if exchange.head.target == b"/quick":
                exchange.respond(200, [], b"")

        async with serving(Recorder(answering=answer)) as stand:
            idle, busy, reading = await stand.connect(), await stand.connect(), await stand.connect()
            idle.send(get(b"/quick"))
            await idle.answer()
            busy.send(get(b"/slow"))
            reading.send(post(b"hello", target=b"/quick")[:-1])
            await until(lambda: len(stand.application.heads) == 3)
            stand.server.drain()
            assert await idle.rest() == b""
            reading.send(b"o")
            stand.application.exchanges[1].respond(200, [], b"whole")
            for client in (busy, reading):
                got = await client.answer()
                assert (got.status, got.headers["connection"]) == (200, "close")
                assert await client.rest() == b""
            assert (await stand.ask(get(b"/quick"))).headers["connection"] == "close"
            stand.server.listeners.close()
            with pytest.raises(ConnectionError):
                await stand.connect()

    run(body())


def test_a_taken_port_is_refused() -> None:
    async def body() -> None:
        async with serving() as stand:
            with pytest.raises(OSError, match="in use"):
                await stand.server.listen("127.0.0.1", stand.port)

    run(body())

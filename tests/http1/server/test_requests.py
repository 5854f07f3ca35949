"""What is accepted, whole and in pieces, one after the other and all at once."""

import asyncio
from functools import partial

import pytest

from http1.server.wire import Recorder, chunked, get, ignore, post, run, serving, until
from millgate.http1.server import Exchange, RefusedRequest, RequestHead

TEAPOT = RefusedRequest(418, [(b"content-type", b"text/plain")], b"short and stout")


def refuse(_head: RequestHead) -> RefusedRequest:
    return TEAPOT


def test_a_request_reaches_the_application_as_it_came() -> None:
    async def body() -> None:
        async with serving() as stand:
            got = await stand.ask(post(b"hello", b"X-Twice: a", b"X-TWICE:  b \t", target=b"/v1/x?a=b"))
            assert (got.status, got.body) == (200, b"POST /v1/x?a=b hello")
            head = stand.application.heads[0]
            assert (head.method, head.target, head.path) == (b"POST", b"/v1/x?a=b", b"/v1/x")
            assert head.headers == [
                (b"host", b"test"),
                (b"content-length", b"5"),
                (b"x-twice", b"a"),
                (b"x-twice", b"b"),
            ]
            assert (head.content_length, head.peer) == (5, "127.0.0.1")
            assert head.header(b"x-twice") == b"a"
            assert head.header(b"x-none") is None

    run(body())


JAVA = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk")


def test_the_offer_of_http2_that_javas_client_makes_is_answered_in_http11() -> None:
    """Whole, in two reads, chunked, and one after the other on one connection."""

    async def body() -> None:
        async with serving() as stand:
            client = await stand.connect()
            for request in (get(b"/a", *JAVA), post(b"hello", *JAVA, target=b"/b")):
                for cut in (len(request), 20, len(request) - 3):
                    client.send(request[:cut])
                    await asyncio.sleep(0.01)
                    client.send(request[cut:])
                    got = await client.answer()
                    assert (got.status, "upgrade" in got.headers) == (200, False)
            client.send(get(b"/c", *JAVA) + post(b"x", *JAVA) * 2 + get(b"/d"))
            assert [(await client.answer()).body for _ in range(4)] == [
                b"GET /c ",
                b"POST / x",
                b"POST / x",
                b"GET /d ",
            ]
            in_chunks = chunked(b"hel", b"lo").replace(b"Host: test", b"\r\n".join((b"Host: test", *JAVA)))
            client.send(in_chunks)
            assert (await client.answer()).body == b"POST / hello"
            client.send(get(b"/last"))
            assert (await client.answer()).body == b"GET /last "

    run(body())


def test_repeated_header_lines_are_told_apart_from_similar_ones() -> None:
    """The memory of header lines gives back the same pair for the same line, and no other."""

    async def body() -> None:
        async with serving() as stand:
            for value in (b"a", b"b", b"a", b"A"):
                await stand.ask(get(b"/", b"X-Value: " + value, b"Authorization: Bearer " + value))
            heads = stand.application.heads
            assert [head.header(b"x-value") for head in heads] == [b"a", b"b", b"a", b"A"]
            assert [head.header(b"authorization") for head in heads] == [
                b"Bearer a",
                b"Bearer b",
                b"Bearer a",
                b"Bearer A",
            ]

    run(body())


@pytest.mark.parametrize(
    "request_bytes",
    [
        get(b"/x"),
        post(b"hello"),
        chunked(b"hel", b"lo"),
        chunked(b"hello", ending=b"0\r\nTrailer: dropped\r\n\r\n"),
    ],
    ids=["get", "sized", "chunked", "chunked with a trailer"],
)
def test_a_request_of_single_bytes_is_the_same_request(request_bytes: bytes) -> None:
    async def body() -> None:
        async with serving() as stand:
            whole, bytewise = await stand.connect(), await stand.connect()
            whole.send(request_bytes)
            expected = await whole.answer()
            for _again in range(2):
                await bytewise.send_bytewise(request_bytes)
                assert (await bytewise.answer()).body == expected.body
            heads = stand.application.heads
            assert heads[1:] == heads[:1] * 2

    run(body())


def test_trailers_are_dropped() -> None:
    async def body() -> None:
        async with serving() as stand:
            got = await stand.ask(chunked(b"a", ending=b"0\r\nX-Late: 1\r\nHost: other\r\n\r\n"))
            assert got.body == b"POST / a"
            head = stand.application.heads[0]
            assert (head.header(b"x-late"), head.header(b"host")) == (None, b"test")

    run(body())


def test_a_connection_is_used_again_after_every_kind_of_request() -> None:
    async def body() -> None:
        async with serving() as stand:
            client = await stand.connect()
            for request in (get(b"/1"), post(b"2"), chunked(b"3"), get(b"/4")):
                client.send(request)
                got = await client.answer()
                assert got.status == 200
                assert "connection" not in got.headers
            assert len(stand.application.bodies) == 4

    run(body())


@pytest.mark.parametrize("request_bytes", [get(b"/", b"Connection: close"), get().replace(b"1.1", b"1.0")])
def test_a_connection_is_closed_when_the_client_does_not_keep_it(request_bytes: bytes) -> None:
    async def body() -> None:
        async with serving() as stand:
            client = await stand.connect()
            client.send(request_bytes)
            got = await client.answer()
            assert (got.status, got.headers["connection"]) == (200, "close")
            assert await client.rest() == b""

    run(body())


def test_the_probe_of_a_route_without_a_host_names_any() -> None:
    """envoyproxy/gateway#8564: Envoy Gateway's active health checks."""

    async def body() -> None:
        async with serving() as stand:
            got = await stand.ask(b"GET /health HTTP/1.1\r\nHost: *\r\n\r\n")
            assert got.status == 200

    run(body())


def test_a_probe_in_http_1_0_may_name_no_host() -> None:
    """RFC 9112 section 3.2 wants one in HTTP/1.1; HAProxy's `option httpchk GET /health` sends these bytes."""

    async def body() -> None:
        async with serving() as stand:
            got = await stand.ask(b"GET /health HTTP/1.0\r\n\r\n")
            assert (got.status, got.headers["connection"]) == (200, "close")
            assert stand.application.heads[0].header(b"host") is None

    run(body())


def test_one_of_several_connection_headers_may_close() -> None:
    async def body() -> None:
        async with serving() as stand:
            got = await stand.ask(get(b"/", b"Connection: te", b"Connection: x, Close"))
            assert got.headers["connection"] == "close"

    run(body())


def test_empty_lines_before_a_request_are_skipped() -> None:
    async def body() -> None:
        async with serving() as stand:
            client = await stand.connect()
            client.send(b"\r\n\r\n" + get(b"/1") + b"\r\n" + get(b"/2"))
            assert (await client.answer()).body == b"GET /1 "
            assert (await client.answer()).body == b"GET /2 "

    run(body())


def test_pipelined_requests_are_answered_in_order() -> None:
    async def body() -> None:
        async with serving() as stand:
            client = await stand.connect()
            client.send(b"".join(get(b"/%d" % n) if n % 2 else post(b"%d" % n) for n in range(300)))
            for n in range(300):
                expected = b"GET /%d " % n if n % 2 else b"POST / %d" % n
                assert (await client.answer()).body == expected

    run(body())


def test_a_client_with_many_requests_at_once_does_not_hold_up_the_others() -> None:
    async def body() -> None:
        async with serving() as stand:
            greedy, modest = await stand.connect(), await stand.connect()
            greedy.send(get(b"/greedy") * 1000)
            modest.send(get(b"/modest"))
            assert (await modest.answer()).status == 200
            assert len(stand.application.bodies) < 1000
            for _n in range(1000):
                assert (await greedy.answer()).body == b"GET /greedy "

    run(body())


def test_a_pipelined_request_waits_for_the_answer_before_it() -> None:
    async def body() -> None:
        async with serving(Recorder(answering=ignore)) as stand:
            client = await stand.connect()
            client.send(get(b"/1") + get(b"/2"))
            client.send(get(b"/3"))
            application = stand.application
            for n in range(1, 4):
                await until(partial(application.has_served, n))
                await asyncio.sleep(0.01)
                assert len(application.heads) == n
                application.exchanges[-1].respond(200, [], b"%d" % n)
            assert [(await client.answer()).body for _n in range(3)] == [b"1", b"2", b"3"]

    run(body())


def test_pipelining_beyond_its_bound_ends_the_connection_after_the_answer() -> None:
    async def body() -> None:
        async with serving(Recorder(answering=ignore), kept_pipelined_bytes=4096) as stand:
            client = await stand.connect()
            client.send(get(b"/1"))
            await until(lambda: stand.application.exchanges)
            client.send(get(b"/2") * 200)
            await asyncio.sleep(0.02)
            stand.application.exchanges[0].respond(200, [], b"first")
            got = await client.answer()
            assert (got.body, got.headers["connection"]) == (b"first", "close")
            assert await client.rest() == b""
            assert len(stand.application.heads) == 1

    run(body())


def test_more_pipelining_than_can_be_held_is_served_in_order_or_closed() -> None:
    async def body() -> None:
        async with serving(linger_s=0.2) as stand:
            client = await stand.connect()
            client.send(b"".join(get(b"/%d" % n) for n in range(10_000)))
            said = await client.rest()
            served = said.count(b"HTTP/1.1 200 OK")
            assert served >= 32
            assert [head.target for head in stand.application.heads] == [b"/%d" % n for n in range(served)]
            assert said.endswith(b"GET /%d " % (served - 1))

    run(body())


def test_a_flood_behind_a_request_counts_as_a_hang_up() -> None:
    async def body() -> None:
        async with serving(Recorder(answering=ignore), kept_pipelined_bytes=1024) as stand:
            client = await stand.connect()
            client.send(get(b"/1"))
            await until(lambda: stand.application.exchanges)
            client.send(b"x" * 3_000_000)
            await until(lambda: stand.application.gone)
            assert await client.rest() == b""

    run(body())


def test_what_follows_a_chunked_body_in_the_same_read_is_never_served() -> None:
    """Only the parser knows where chunks end, so what is behind them cannot be read with certainty."""

    async def body() -> None:
        for behind in (get(b"/2"), b"GE", b"GET /2 HTTP/1.1\r\n"):
            async with serving() as stand:
                client = await stand.connect()
                client.send(chunked(b"1") + behind)
                got = await client.answer()
                assert (got.body, got.headers["connection"]) == (b"POST / 1", "close")
                assert await client.rest() == b""
                assert len(stand.application.heads) == 1

    run(body())


def test_100_continue_is_sent_after_the_head_has_passed_and_before_the_body() -> None:
    async def body() -> None:
        async with serving() as stand:
            client = await stand.connect()
            head, _, rest = post(b"hello", b"Expect: 100-continue").partition(b"\r\n\r\n")
            client.send(head + b"\r\n\r\n")
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            assert not stand.application.bodies
            client.send(rest)
            assert (await client.answer()).body == b"POST / hello"

    run(body())


def test_100_continue_is_not_sent_when_the_head_is_refused_or_the_body_is_here() -> None:
    async def body() -> None:
        async with serving() as stand:
            assert (await stand.ask(post(b"hello", b"Expect: 100-continue"))).status == 200
            stand.application.judging = refuse
            head, _, _rest = post(b"hello", b"Expect: 100-continue").partition(b"\r\n\r\n")
            assert (await stand.ask(head + b"\r\n\r\n")).status == 418
            assert len(stand.application.bodies) == 1

    run(body())


def test_a_refusal_of_a_request_without_a_body_keeps_the_connection() -> None:
    async def body() -> None:
        async with serving(Recorder(judging=refuse)) as stand:
            client = await stand.connect()
            for _again in range(2):
                client.send(get())
                got = await client.answer()
                assert (got.status, got.body) == (418, TEAPOT.body)
                assert "connection" not in got.headers
            assert not stand.application.bodies

    run(body())


@pytest.mark.parametrize("sent_bytes", [0, 1000, 500_000])
def test_an_early_refusal_reaches_a_client_that_is_still_sending(sent_bytes: int) -> None:
    async def body() -> None:
        async with serving(Recorder(judging=refuse), linger_s=0.3) as stand:
            client = await stand.connect()
            client.send(post(b"x" * 2_000_000)[: 100 + sent_bytes])
            got = await client.answer()
            assert (got.status, got.body, got.headers["connection"]) == (418, TEAPOT.body, "close")
            assert await client.rest() == b""
            assert not stand.application.bodies
        assert stand.server.budget.held_bytes == 0

    run(body())


def test_a_client_that_never_closes_is_let_go_after_the_lingering() -> None:
    async def body() -> None:
        async with serving(Recorder(judging=refuse), linger_s=0.1) as stand:
            client = await stand.connect()
            client.send(post(b"x" * 100)[:90])
            await client.answer()
            await until(lambda: stand.server.connections == 0)

    run(body())


def test_a_fault_of_the_application_is_answered_with_500_and_reported() -> None:
    async def body() -> None:
        faults: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, fault: faults.append(fault["exception"])
        )

        def fail(_exchange: Exchange, _body: bytes) -> None:
            raise LookupError("our own fault")

        def fail_on_head(head: RequestHead) -> RefusedRequest | None:
            if head.path == b"/head":
                raise LookupError("our own fault")
            return None

        async with serving(Recorder(answering=fail, judging=fail_on_head)) as stand:
            for target in (b"/", b"/head"):
                got = await stand.ask(get(target))
                assert (got.status, got.headers["connection"]) == (500, "close")
                assert b"our own" not in got.body
            assert [type(fault) for fault in faults] == [LookupError] * 2

    run(body())

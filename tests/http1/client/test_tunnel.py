"""Engines behind a proxy: the tunnel, TLS within it, and in words for an operator whatever keeps it from being there."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme

from egress_proxy import EgressProxy
from http1.client.engine import Receiver, Stand, engine, run, saying, sized, stay, until
from http1.client.test_faults import unanswering_port
from millgate.core.words import FailureKind, Sent
from millgate.http1.client import Proxy, UpstreamPool, UpstreamSettings

NAME = "engine.test"
"""Of an engine; no name server of this machine knows it."""
_DESCRIPTORS = Path("/proc/self/fd")


@contextlib.asynccontextmanager
async def pooling(stand: Stand, proxy: EgressProxy, **more: Any) -> AsyncIterator[UpstreamPool]:
    """Make a pool that reaches the engine through this proxy; afterwards no connection may be left."""
    proxy.routes[f"{NAME}:80"] = stand.port
    settings = replace(UpstreamSettings(), **more.pop("settings", {}))
    pool = UpstreamPool(NAME, 80, settings=settings, proxy=Proxy("127.0.0.1", proxy.port), **more)
    try:
        yield pool
    finally:
        await end(pool, proxy)


async def end(pool: UpstreamPool, proxy: EgressProxy) -> None:
    """Close the pool; nothing of it may be left."""
    pool.close()
    await until(lambda: pool.open == 0 and proxy.connections == 0)


def descriptors() -> int:
    return len(list(_DESCRIPTORS.iterdir()))


async def ask(pool: UpstreamPool) -> Receiver:
    receiver = Receiver()
    pool.request(b"GET", b"/", [], b"", receiver)
    await until(lambda: receiver.over)
    return receiver


def test_an_engine_that_only_the_proxy_can_look_up_answers_and_its_connection_is_used_again() -> None:
    async def body() -> None:
        async with engine(saying(sized())) as stand, EgressProxy() as proxy, pooling(stand, proxy) as pool:
            for _ in range(3):
                assert (await ask(pool)).body == b"whole"
            assert proxy.asked == [b"CONNECT engine.test:80 HTTP/1.1\r\nhost: engine.test:80\r\n\r\n"]
            assert (len(stand.asked), pool.kept) == (1, 1)

    run(body())


def test_a_login_is_sent_to_the_proxy_alone() -> None:
    async def body() -> None:
        async with engine(saying(sized())) as stand, EgressProxy(login="user:pass:w@rd") as proxy:
            proxy.routes["10.0.0.1:8000"] = stand.port
            way = Proxy.from_url(f"http://user:pass%3Aw%40rd@127.0.0.1:{proxy.port}/")
            pool = UpstreamPool("10.0.0.1", 8000, proxy=way)
            assert (await ask(pool)).body == b"whole"
            assert b"authorization" not in stand.asked[0].head.lower()
            assert "Basic" not in repr(way)
            pool.close()

    run(body())


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("http://proxy.test:3128", Proxy("proxy.test", 3128)),
        ("http://u@[::1]:80/", Proxy("::1", 80, b"Basic dTo=")),
        ("http://u:p@q@h:80", Proxy("h", 80, b"Basic dTpwQHE=")),
    ],
)
def test_the_address_of_a_proxy_is_read_as_other_programs_read_it(url: str, proxy: Proxy) -> None:
    assert Proxy.from_url(url) == proxy


def test_an_engine_with_an_ipv6_address_is_named_in_brackets() -> None:
    async def body() -> None:
        async with engine(saying(sized())) as stand, EgressProxy({"[fd00::2]:80": stand.port}) as proxy:
            pool = UpstreamPool("fd00::2", 80, proxy=Proxy("127.0.0.1", proxy.port))
            assert (await ask(pool)).body == b"whole"
            pool.close()

    run(body())


HEAD = b"HTTP/1.1 200 Connection established\r\n"
SAID: dict[str, tuple[list[bytes], str]] = {
    "wrong password": ([b"HTTP/1.1 407 No\r\n\r\n"], "answers 407: its user or password is missing or wrong"),
    "not allowed": ([b"HTTP/1.1 403 No\r\ncontent-length: 2\r\n\r\nno"], "answers 403: it does not allow"),
    "no CONNECT": ([b"HTTP/1.1 405 No\r\n\r\n"], "opens no tunnel: it answers 405"),
    "unknown name": ([b"HTTP/1.0 502 Bad Gateway\r\n\r\n"], "answers 502: it does not reach this address"),
    "slow engine": ([b"HTTP/1.1 504 Timeout\r\n\r\n"], "answers 504: it does not reach this address"),
    "a login page": ([b"HTTP/1.1 302 Found\r\nlocation: /login\r\n\r\n"], "opens no tunnel: it answers 302"),
    "another protocol": ([b"SSH-2.0-OpenSSH_9.2\r\n"], "does not begin with an HTTP/1 status line"),
    "garbage in one piece": ([b"\x00\x01garbage\r\n\r\n"], "it answers no HTTP/1.1"),
    "lines that end oddly": ([b"HTTP/1.1 200 OK\n\n"], "lines that do not end in CR LF"),
    "bytes behind its answer": ([HEAD + b"\r\nHTTP/1.1 200 OK\r\n"], "bytes follow its answer"),
    "a huge head": ([HEAD + b"x-a: " + b"a" * 70_000, b"b" * 70_000], "is longer than 65536 bytes"),
    "a huge head with an end": (
        [HEAD + b"x-a: " + b"a" * 70_000 + b"\r\n\r\n"],
        "is longer than 65536 bytes",
    ),
}


@pytest.mark.parametrize(("says", "why"), SAID.values(), ids=SAID.keys())
def test_whatever_a_proxy_answers_in_place_of_a_tunnel_is_said_once_and_leaves_nothing(
    says: list[bytes], why: str
) -> None:
    async def body() -> None:
        async with engine(saying(sized())) as stand, EgressProxy() as proxy, pooling(stand, proxy) as pool:
            proxy.says = says
            got = await ask(pool)
            assert got.failure == (FailureKind.CONNECT, Sent.NONE)
            assert got.failed[0][2].startswith("cannot connect to engine.test:80: the proxy 127.0.0.1:")
            assert why in got.failed[0][2]
            await until(lambda: proxy.connections == 0)
            proxy.says = None
            assert (await ask(pool)).body == b"whole"

    run(body())


@pytest.mark.parametrize(
    ("says", "hangs_up", "why"),
    [
        ([], False, "opens no tunnel: no answer in time"),
        ([HEAD], False, "opens no tunnel: no answer in time"),
        ([], True, "opens no tunnel: it closed the connection (without an answer)"),
    ],
    ids=["silence", "half a head", "a hang-up"],
)
def test_a_proxy_that_says_nothing_is_given_up_within_the_time_to_connect(
    says: list[bytes], hangs_up: bool, why: str
) -> None:
    async def body() -> None:
        quick = {"connect_s": 0.2}
        async with (
            engine(saying(sized())) as stand,
            EgressProxy() as proxy,
            pooling(stand, proxy, settings=quick) as pool,
        ):
            proxy.says, proxy.hangs_up = says, hangs_up
            got = await ask(pool)
            assert got.failure == (FailureKind.CONNECT, Sent.NONE)
            assert why in got.failed[0][2]

    run(body())


def test_a_tunnel_whose_head_comes_in_pieces_and_says_something_of_a_body_is_a_tunnel() -> None:
    """RFC 9110, section 9.3.6: of such a head Content-Length and Transfer-Encoding mean nothing."""

    async def body() -> None:
        async with EgressProxy() as proxy:
            proxy.says = [HEAD, b"content-length: 9\r\ntransfer-encoding: chunked\r", b"\n\r", b"\n", sized()]
            pool = UpstreamPool(NAME, 80, proxy=Proxy("127.0.0.1", proxy.port))
            assert (await ask(pool)).body == b"whole"
            pool.close()

    run(body())


def test_a_proxy_that_is_not_there_is_named_and_not_the_engine() -> None:
    async def body() -> None:
        async with EgressProxy() as proxy:
            port = proxy.port
        pool = UpstreamPool(NAME, 443, proxy=Proxy("127.0.0.1", port))
        detail = (await ask(pool)).failed[0][2]
        assert detail.startswith(
            f"cannot connect to engine.test:443: the proxy 127.0.0.1:{port} cannot be reached: "
        )
        pool.close()
        sockets, port = await unanswering_port()
        pool = UpstreamPool(
            NAME, 443, settings=UpstreamSettings(connect_s=0.2), proxy=Proxy("127.0.0.1", port)
        )
        detail = (await ask(pool)).failed[0][2]
        assert detail.endswith(f"the proxy 127.0.0.1:{port} cannot be reached: no answer in time")
        pool.close()
        for sock in sockets:
            sock.close()

    run(body())


def test_a_proxy_whose_name_is_unknown_is_named() -> None:
    async def body() -> None:
        async def look_up(host: str) -> tuple[str, ...]:
            asked.append(host)
            raise OSError("unknown name")

        asked: list[str] = []
        pool = UpstreamPool(NAME, 443, proxy=Proxy("proxy.test", 3128), look_up=look_up)
        detail = (await ask(pool)).failed[0][2]
        assert detail.endswith("the proxy proxy.test:3128 cannot be reached: unknown name")
        assert asked == ["proxy.test"]
        pool.close()

    run(body())


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.005, 0.05])
def test_a_client_that_leaves_while_the_proxy_is_silent_leaves_no_descriptor(after_s: float) -> None:
    async def body() -> None:
        async with engine(saying(sized())) as stand, EgressProxy() as proxy:
            before = descriptors()
            async with pooling(stand, proxy) as pool:
                proxy.says = []
                for _ in range(20):
                    call = pool.request(b"GET", b"/", [], b"", Receiver())
                    await asyncio.sleep(after_s)
                    call.abort()
                assert pool.open == 0
            await until(lambda: descriptors() <= before)

    run(body())


# ---- TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def client_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@contextlib.asynccontextmanager
async def secure_engine(authority: trustme.CA, *, answers: bool = True) -> AsyncIterator[int]:
    """Serve every request with one answer over TLS, or close when the handshake is over; yield the port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(NAME).configure_cert(context)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while answers:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(sized())
        writer.transport.abort()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]


def test_a_provider_is_spoken_to_over_tls_through_the_proxy_and_verified_by_its_name(
    authority: trustme.CA,
) -> None:
    async def body() -> None:
        async with secure_engine(authority) as port:
            routes = {f"{NAME}:443": port, "other.test:443": port}
            async with EgressProxy(routes) as proxy:
                way, context = Proxy("127.0.0.1", proxy.port), client_context(authority)
                pool = UpstreamPool(NAME, 443, ssl=context, proxy=way)
                for _ in range(3):
                    assert (await ask(pool)).body == b"whole"
                assert (len(proxy.asked), pool.kept) == (1, 1)
                pool.close()
                for host, trusts in (("other.test", authority), (NAME, trustme.CA())):
                    pool = UpstreamPool(host, 443, ssl=client_context(trusts), proxy=way)
                    got = await ask(pool)
                    assert got.failure == (FailureKind.CONNECT, Sent.NONE)
                    assert "opened a tunnel that failed: " in got.failed[0][2]
                    assert "certificate verify failed" in got.failed[0][2]
                    pool.close()
                await until(lambda: proxy.connections == 0)

    run(body())


def test_a_provider_that_is_silent_in_the_tunnel_or_closes_it_is_told_from_a_silent_proxy(
    authority: trustme.CA,
) -> None:
    async def body() -> None:
        async with engine(stay) as silent, secure_engine(authority, answers=False) as closing:
            for port, why in ((silent.port, "opened a tunnel that failed: no answer in time"), (closing, "")):
                async with EgressProxy({f"{NAME}:443": port}) as proxy:
                    pool = UpstreamPool(
                        NAME,
                        443,
                        ssl=client_context(authority),
                        settings=UpstreamSettings(connect_s=0.2),
                        proxy=Proxy("127.0.0.1", proxy.port),
                    )
                    for _ in range(5):
                        got = await ask(pool)
                        assert why in got.failed[0][2]
                    await end(pool, proxy)

    run(body())


def test_a_client_that_leaves_during_the_handshake_in_the_tunnel_closes_it(authority: trustme.CA) -> None:
    async def body() -> None:
        async with engine(stay) as silent, EgressProxy({f"{NAME}:443": silent.port}) as proxy:
            way, context = Proxy("127.0.0.1", proxy.port), client_context(authority)
            pool = UpstreamPool(NAME, 443, ssl=context, proxy=way)
            call = pool.request(b"GET", b"/", [], b"", Receiver())
            await until(lambda: silent.asked)
            await asyncio.sleep(0.01)
            call.abort()
            await until(lambda: proxy.connections == 0)
            await end(pool, proxy)

    run(body())

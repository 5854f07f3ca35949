"""Connections of the admin door are bounded before any token is asked for, and no number of them keeps an operator out."""

import asyncio
import contextlib
from typing import Any

import pytest

from millgate.observe.live.feed import LiveFeed
from millgate.servers.admin import server
from millgate.servers.admin.server import MOST_CONNECTIONS, MOST_HEAD_BYTES
from servers.admin.test_admin import Client, serving
from servers.admin.test_page import serving as with_page

TOKEN = "t" * 32
HEAD = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n"


async def said(client: Client, data: bytes) -> bytes:
    """Send this and return what comes until the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
    writer.write(data)
    answer = b""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(10.0):
            while piece := await reader.read(65_536):
                answer += piece
    writer.transport.abort()
    return answer


@pytest.mark.parametrize(
    "head",
    [
        HEAD + b"a:\r\n" * MOST_HEAD_BYTES,
        HEAD + b"x: " + b"x" * 1_000_000,
        HEAD + b"cookie: " + b"a=b;" * MOST_HEAD_BYTES + b"\r\n\r\n",
        b"GET /" + b"%41" * MOST_HEAD_BYTES + b" HTTP/1.1\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * MOST_HEAD_BYTES,
        (HEAD + b"\r\n") * 5_000,
    ],
    ids=["fields", "one field", "cookies", "target", "trailers", "pipelined"],
)
def test_a_head_without_end_is_cut_before_a_token_is_asked_for(head: bytes) -> None:
    """Sixty megabytes of fields were kept as sixty megabytes of memory."""

    async def script(client: Client) -> None:
        assert (await said(client, head)).count(b"HTTP/1.1 200 ") <= 1
        assert (await client.get("/healthz")).status == 200

    serving(script, token=TOKEN)


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        HEAD,
        b"POST /login HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\ntoken=",
        b"POST /api/explain HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer %b\r\ncontent-length: 9\r\n\r\n{"
        % TOKEN.encode(),
    ],
    ids=["silent", "half a head", "half a form", "half a question"],
)
def test_a_request_that_does_not_come_is_given_up_without_a_word_in_the_log(
    beginning: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A traceback of forty lines stood there for each form that its sender did not finish."""
    monkeypatch.setattr(server, "REQUEST_WITHIN_S", 0.2)

    async def script(client: Client, _feed: LiveFeed[Any]) -> None:
        assert (await said(client, beginning)).startswith(b"HTTP/1.1 408 ")

    with_page(script, token=TOKEN)
    assert caplog.messages == []


def test_a_second_request_that_does_not_come_whole_is_given_up_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_WITHIN_S", 0.2)

    async def script(client: Client) -> None:
        answer = await said(client, HEAD + b"\r\n" + HEAD)
        assert answer.count(b"HTTP/1.1 200 ") == 1

    serving(script, token=TOKEN)


async def ask_and_never_read(client: Client, ask: bytes) -> None:
    """Ask again and again; returns only by what is raised when the connection is cut."""
    async with asyncio.timeout(20.0):
        _reader, writer = await asyncio.open_connection("127.0.0.1", client.port, limit=1024)
        while True:
            writer.write(ask)
            await writer.drain()
            await asyncio.sleep(0.001)


def test_a_client_that_does_not_read_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "READ_WITHIN_S", 0.2)
    ask = b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"

    async def script(client: Client) -> None:
        with pytest.raises(ConnectionError):
            await ask_and_never_read(client, ask)

    serving(script, token=TOKEN)


@pytest.mark.parametrize("beginning", [b"", HEAD, HEAD + b"\r\n"], ids=["silent", "half a head", "idle"])
def test_an_operator_gets_in_however_many_strangers_wait_at_the_door(beginning: bytes) -> None:
    """A hundred and forty-four half heads closed the door to probes, scrapers and operators for good."""

    async def script(client: Client) -> None:
        strangers = []
        for _ in range(2 * MOST_CONNECTIONS):
            strangers.append(await asyncio.open_connection("127.0.0.1", client.port))
            strangers[-1][1].write(beginning)
        for _ in range(5):
            answer = await client.get("/readyz", authorization=f"Bearer {TOKEN}")
            assert answer.status == 200
        for _reader, writer in strangers:
            writer.transport.abort()

    serving(script, token=TOKEN)

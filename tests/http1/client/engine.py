"""An engine that is a script on a raw socket, and a receiver that writes down what it is told."""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import uvloop

from millgate.core.words import FailureKind, Sent
from millgate.http1.client import AnswerHead, Call, UpstreamPool, UpstreamSettings

PATIENCE_S = 30.0
"""How long a test waits for what must happen; only a failing test waits that long."""


def run(test: Awaitable[None]) -> None:
    """Run a test body on uvloop; an exception that the loop would only log fails the test."""
    faults: list[dict[str, Any]] = []

    async def bounded() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(context))
        async with asyncio.timeout(30):
            await test

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())
    assert not faults


async def until(truth: Callable[[], object]) -> None:
    """Return as soon as `truth()` holds."""
    by = time.monotonic() + PATIENCE_S
    while not truth():
        assert time.monotonic() < by, "this should have become true"
        await asyncio.sleep(0.002)


class Asked:
    """One connection as the engine's script sees it."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.reader = reader
        self.writer = writer
        self.head = b""
        self.body = b""

    async def request(self) -> bool:
        """Read one request; return False when the client has closed instead."""
        try:
            self.head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        length = self.head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        self.body = await self.reader.readexactly(int(length)) if length else b""
        return True

    async def say(self, *pieces: bytes) -> None:
        """Send each piece in its own segment."""
        for piece in pieces:
            if self.writer.is_closing():
                raise ConnectionError
            self.writer.write(piece)
            await asyncio.sleep(0.001)

    async def hung_up(self) -> bool:
        """Wait until the client has left."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass
        return True

    def reset(self) -> None:
        """Close so that the client sees a reset, not a proper end."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Script = Callable[[Asked], Awaitable[None]]


@dataclass
class Receiver:
    """Remembers its callbacks in order; `whole` are those of one good answer."""

    head: AnswerHead | None = None
    data: list[bytes] = field(default_factory=list)
    ended: list[bool] = field(default_factory=list)
    failed: list[tuple[FailureKind, Sent, str]] = field(default_factory=list)
    raised: int = 0
    on_any: Callable[[str], None] = lambda _what: None

    def on_head(self, head: AnswerHead) -> None:
        assert self.head is None
        assert not self.data
        self.head = head
        self.on_any("head")

    def on_data(self, data: bytes) -> None:
        assert self.head is not None
        assert data
        self.data.append(data)
        self.on_any("data")

    def on_end(self, *, delimited: bool) -> None:
        assert not self.over
        assert self.head is not None
        self.ended.append(delimited)
        self.on_any("end")

    def on_failed(self, kind: FailureKind, sent: Sent, detail: str) -> None:
        assert not self.over
        self.failed.append((kind, sent, detail))
        self.on_any("failed")

    def on_raised(self) -> None:
        self.raised += 1

    @property
    def over(self) -> bool:
        return bool(self.ended or self.failed)

    @property
    def body(self) -> bytes:
        return b"".join(self.data)

    @property
    def failure(self) -> tuple[FailureKind, Sent]:
        kind, sent, detail = self.failed[0]
        assert detail
        return kind, sent


@dataclass
class Stand:
    """A pool in front of a scripted engine, and how often that engine was connected to."""

    pool: UpstreamPool
    port: int
    server: asyncio.Server
    asked: list[Asked] = field(default_factory=list)

    def send(self, receiver: Receiver, body: bytes = b"{}", **more: Any) -> Call:
        """Send a POST without waiting."""
        return self.pool.request(b"POST", b"/v1/x", [(b"x-a", b"b")], body, receiver, **more)

    async def ask(self, body: bytes = b"{}", expires_at: float | None = None, **more: Any) -> Receiver:
        """Send a POST, which is given up at this loop time, and wait until it is over."""
        receiver = Receiver()
        self.send(receiver, body, **more).expire_at(expires_at)
        await until(lambda: receiver.over)
        return receiver


@contextlib.asynccontextmanager
async def engine(script: Script, **settings: Any) -> AsyncIterator[Stand]:
    """Run a scripted engine with a pool in front; afterwards no connection may be left."""
    asked: list[Asked] = []
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        one = Asked(len(asked) + 1, reader, writer)
        asked.append(one)
        try:
            with contextlib.suppress(ConnectionError):
                await script(one)
        except Exception as fault:
            asyncio.get_running_loop().call_exception_handler({"message": "the script", "exception": fault})
            raise
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20)
    port = server.sockets[0].getsockname()[1]
    pool = UpstreamPool("127.0.0.1", port, settings=replace(UpstreamSettings(), **settings))
    try:
        yield Stand(pool, port, server, asked)
    finally:
        pool.close()
        await until(lambda: pool.open == 0)
        server.close()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE_S)
        await server.wait_closed()


def sized(body: bytes = b"whole", *lines: bytes, status: bytes = b"200 OK") -> bytes:
    """Return a sized answer."""
    return b"\r\n".join((b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *lines, b"", body))


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """Return one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def saying(*pieces: bytes, then: Script | None = None) -> Script:
    """Make an engine that answers every request with these pieces, then does something or waits for the next."""

    async def script(asked: Asked) -> None:
        while await asked.request():
            await asked.say(*pieces)
            if then is not None:
                await then(asked)
                return

    return script


async def close(_asked: Asked) -> None:
    """Close properly."""


async def reset(asked: Asked) -> None:
    """Close with a reset."""
    asked.reset()


async def stay(asked: Asked) -> None:
    """Say nothing more until the client has left."""
    await asked.hung_up()

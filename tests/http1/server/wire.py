"""A server on a socket with an application that writes down what it is told, and clients that are raw sockets."""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import uvloop

from millgate.http1.server import ByteBudget, Exchange, HttpServer, RefusedRequest, RequestHead, ServerLimits

PATIENCE_S = 30.0
"""How long a test waits for what must happen; only a failing test waits that long."""

LIMITS = ServerLimits(connections=64)

Answering = Callable[[Exchange, bytes], None]


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


def echo(exchange: Exchange, body: bytes) -> None:
    """Answer with the request's method, target and body."""
    exchange.respond(
        200,
        [(b"content-type", b"text/plain")],
        exchange.head.method + b" " + exchange.head.target + b" " + body,
    )


def ignore(_exchange: Exchange, _body: bytes) -> None:
    """Answer later, or never."""


@dataclass
class Recorder:
    """An application that remembers its calls; `answering` answers, `judging` refuses."""

    answering: Answering = echo
    judging: Callable[[RequestHead], RefusedRequest | None] = lambda _head: None
    heads: list[RequestHead] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    gone: list[Exchange] = field(default_factory=list)
    slow: list[bool] = field(default_factory=list)

    def on_head(self, head: RequestHead) -> RefusedRequest | None:
        self.heads.append(head)
        return self.judging(head)

    def on_request(self, exchange: Exchange, body: bytes) -> None:
        self.exchanges.append(exchange)
        self.bodies.append(body)
        self.answering(exchange, body)

    def has_served(self, count: int) -> bool:
        return len(self.exchanges) == count

    def on_gone(self, exchange: Exchange) -> None:
        assert exchange.gone
        self.gone.append(exchange)

    def on_slow(self, exchange: Exchange, slow: bool) -> None:
        self.slow.append(slow)

    def bad_request(
        self, status: int, code: str, message: str, head: RequestHead | None = None
    ) -> RefusedRequest:
        return RefusedRequest(status, [(b"content-type", b"text/plain")], f"{code}: {message}".encode())


@dataclass
class Answer:
    """One answer as a client has read it; `whole` is False when the connection ended before it did."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool = True


class Client:
    """A raw socket that can send anything and read answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def send_bytewise(self, data: bytes) -> None:
        """Send every byte in its own segment."""
        sock = self.writer.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        for byte in data:
            self.writer.write(bytes((byte,)))
            await asyncio.sleep(0)

    async def rest(self) -> bytes:
        """Read to the end of the connection; a reset counts as the end."""
        got = bytearray()
        with contextlib.suppress(ConnectionError):
            while data := await asyncio.wait_for(self.reader.read(65536), PATIENCE_S):
                got += data
        return bytes(got)

    async def answer(self, *, bodiless: bool = False) -> Answer:
        """Read one final answer."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        status_line, *lines = head[:-4].decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        answer = Answer(int(status_line.split(" ")[1]), headers, b"")
        if bodiless or answer.status in {204, 304}:
            return answer
        try:
            if headers.get("transfer-encoding") == "chunked":
                await self._chunks(answer)
            elif "content-length" in headers:
                answer.body = await self.reader.readexactly(int(headers["content-length"]))
            else:
                answer.body = await self.rest()
        except asyncio.IncompleteReadError as cut:
            answer.body += cut.partial
            answer.whole = False
        return answer

    async def _chunks(self, answer: Answer) -> None:
        while True:
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            data = await self.reader.readexactly(size + 2)
            if not size:
                return
            answer.body += data[:-2]

    def hang_up(self) -> None:
        """Leave with a reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@dataclass
class Stand:
    """A running server, its application, and its clients."""

    server: HttpServer
    port: int
    application: Recorder
    clients: list[Client] = field(default_factory=list)

    async def connect(self, *, receive_bytes: int | None = None) -> Client:
        """Open a connection, with a small receive window if asked."""
        sock = socket.socket()
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        except OSError:
            sock.close()
            raise
        client = Client(*await asyncio.open_connection(sock=sock, limit=1024))
        self.clients.append(client)
        return client

    async def ask(self, request: bytes) -> Answer:
        """Send one request on a connection of its own and return the answer."""
        client = await self.connect()
        client.send(request)
        return await client.answer()


@contextlib.asynccontextmanager
async def serving(
    application: Recorder | None = None, *, budget: ByteBudget | None = None, **limits: float
) -> AsyncIterator[Stand]:
    """Run a server; afterwards nothing of it may be left."""
    application = application or Recorder()
    server = HttpServer(application, limits=replace(LIMITS, **limits), budget=budget)  # type: ignore[arg-type]
    stand = Stand(server, await server.listen("127.0.0.1", 0), application)
    try:
        yield stand
    finally:
        for client in stand.clients:
            await client.close()
        await server.close()
    assert server.connections == 0
    assert server.budget.held_bytes == 0


def get(target: bytes = b"/", *lines: bytes) -> bytes:
    """Return a GET request."""
    return b"\r\n".join((b"GET " + target + b" HTTP/1.1", b"Host: test", *lines, b"", b""))


def post(body: bytes, *lines: bytes, target: bytes = b"/") -> bytes:
    """Return a POST request with a sized body."""
    length = b"Content-Length: %d" % len(body)
    return b"\r\n".join((b"POST " + target + b" HTTP/1.1", b"Host: test", length, *lines, b"", body))


def chunked(*chunks: bytes, ending: bytes = b"0\r\n\r\n") -> bytes:
    """Return a POST request with a chunked body."""
    head = b"POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + ending

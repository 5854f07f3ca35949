"""An engine that does exactly what a test tells it, on a raw socket, so that it can break every rule of HTTP.

    async def script(asked: ScriptedConnection) -> None:
        await asked.send(answers.head(200, "text/event-stream"))
        await asked.wait(0.5)
        asked.reset()

    with FakeUpstream(script) as upstream:
        ...  # point a gateway at upstream.url and look at upstream.received afterwards

A script is called for every request that has come whole. When the gateway hangs up while a script runs, the script
is cancelled and the connection counted in `aborted`.
"""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, cast

from lab.upstream import answers
from millgate.testing.service import Service

# Until a connection that was accepted in this turn is made, and can be cut.
_TURNS = 3
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_HEAD_END = b"\r\n\r\n"


class ScriptedRequest(NamedTuple):
    """One request as it came; header names are lower-cased, `connection` counts from 1."""

    method: bytes
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    connection: int

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of this lower-case name, or None."""
        return next((value for key, value in self.headers if key == name), None)

    def json(self) -> Any:
        """Return the decoded body."""
        return json.loads(self.body)


class ScriptedConnection(asyncio.Protocol):
    """One connection from the gateway, and what a script may do to it. `request` is the one to be answered."""

    request: ScriptedRequest

    def __init__(self, upstream: "FakeUpstream", number: int) -> None:
        self.number = number
        self.gone = asyncio.Event()
        self._upstream = upstream
        self._buffer = bytearray()
        self._came = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self.answering = False

    # ---- what a script does

    async def send(self, data: bytes) -> None:
        """Send bytes as they are; return when the kernel has taken them."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the gateway has hung up")
        self._transport.write(data)
        await self._writable.wait()
        self._upstream.sent_bytes += len(data)

    async def send_slowly(self, data: bytes, piece_bytes: int = 1, gap_s: float = 0.0) -> None:
        """Send in pieces, each in a segment of its own, with a pause after each."""
        for begin in range(0, len(data), piece_bytes):
            await self.send(data[begin : begin + piece_bytes])
            await asyncio.sleep(gap_s)

    async def wait(self, seconds: float) -> None:
        """Say nothing for so long."""
        await asyncio.sleep(seconds)

    async def stall(self) -> None:
        """Say nothing until the gateway hangs up (which cancels the script)."""
        await self.gone.wait()

    def close(self) -> None:
        """Close cleanly (FIN), when what was sent has left."""
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """Cut the connection (RST)."""
        if self._transport is not None:
            raw = self._transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._transport.abort()

    # ---- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start serving the connection."""
        self._transport = stream = cast("asyncio.Transport", transport)
        stream.set_write_buffer_limits(high=0)
        stream.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._upstream.lines.add(self)
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        """Keep what came for the next request."""
        self._buffer += data
        self._came.set()

    def eof_received(self) -> None:
        """Take a half-close as a hang-up: a gateway has no reason for one."""
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the script."""
        del exc
        self._transport = None
        self._end()
        self._upstream.lines.discard(self)

    def pause_writing(self) -> None:
        """Hold the script in `send`."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let it go on."""
        self._writable.set()

    # ---- within

    def _end(self) -> None:
        if not self.gone.is_set():
            self.gone.set()
            if self._task is not None:
                self._task.cancel()

    async def _serve(self) -> None:
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            if self._upstream.on_connect is not None:
                await self._upstream.on_connect(self)
            while not self.gone.is_set():
                self.request = request = await self._next_request()
                await self._answer(request)

    async def _answer(self, request: ScriptedRequest) -> None:
        upstream = self._upstream
        if request.target.endswith(b"/metrics"):
            upstream.scrapes += 1
            await (upstream.on_scrape or _not_found)(self)
            return
        if request.target.endswith(b"/health"):
            await self.send(answers.whole(b"", upstream.health))
            return
        # What a gateway asks for itself has no client's id.
        if request.target.endswith(b"/v1/models") and request.header(b"x-request-id") is None:
            await (upstream.on_look or _not_found)(self)
            return
        upstream.received.append(request)
        self.answering = True
        try:
            await upstream.script(self)
        except asyncio.CancelledError:
            upstream.aborted += 1
            raise
        finally:
            self.answering = False

    async def _next_request(self) -> ScriptedRequest:
        while True:
            head, found, rest = bytes(self._buffer).partition(_HEAD_END)
            if found:
                request = _parse(head, rest, self.number)
                if request is not None:
                    del self._buffer[: len(head) + len(_HEAD_END) + len(request.body)]
                    return request
            self._came.clear()
            await self._came.wait()


def _parse(head: bytes, rest: bytes, number: int) -> ScriptedRequest | None:
    """Return the request when its body is here too; it must be sized, as every gateway worth testing sends it."""
    opening, *lines = head.split(b"\r\n")
    method, target, _version = opening.split(b" ")
    pairs = (line.partition(b":") for line in lines)
    headers = tuple((name.lower(), value.strip()) for name, _colon, value in pairs)
    length = int(next((value for name, value in headers if name == b"content-length"), b"0"))
    return ScriptedRequest(method, target, headers, rest[:length], number) if len(rest) >= length else None


async def _not_found(line: ScriptedConnection) -> None:
    await line.send(answers.whole(b"nothing here", 404, "text/plain"))


Script = Callable[[ScriptedConnection], Awaitable[None]]
"""Answers one request: `line.request`."""


async def answer_politely(line: ScriptedConnection) -> None:
    """Answer as a healthy engine does, at once, streamed or not as asked."""
    if b'"stream": true' in line.request.body or b'"stream":true' in line.request.body:
        body = answers.stream("hel", "lo", usage=b"include_usage" in line.request.body)
        await line.send(answers.head(200, answers.EVENT_STREAM) + answers.chunks(body) + answers.LAST_CHUNK)
    else:
        await line.send(answers.whole(answers.completion("hello")))


class FakeUpstream(Service):
    """A raw HTTP/1.1 server that runs `script` for every request; both may be changed at any time.

    `on_connect` runs before the first request of a connection is read, `on_scrape` for requests to `/metrics` and `on_look` for
    those that the gateway itself sends to `/v1/models` (default: 404); `health` is the status of `/health`. `received` are the
    other requests in order, `connected` counts connections, `aborted` the scripts that a hang-up of the gateway interrupted, `sent_bytes` what the gateway has taken.
    """

    def __init__(
        self,
        script: Script = answer_politely,
        *,
        on_connect: Script | None = None,
        on_scrape: Script | None = None,
        on_look: Script | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.script = script
        self.on_connect = on_connect
        self.on_scrape = on_scrape
        self.on_look = on_look
        self.received: list[ScriptedRequest] = []
        self.connected = 0
        self.aborted = 0
        self.scrapes = 0
        self.health = 200
        self.sent_bytes = 0
        self.lines: set[ScriptedConnection] = set()
        self.port = 0
        self._host = host
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """The base address, for `millgate serve --upstream`."""
        return f"http://{self._host}:{self.port}"

    @property
    def answering(self) -> int:
        """How many scripts run now."""
        return sum(line.answering for line in tuple(self.lines))

    async def start(self) -> None:
        """Listen on a free port, or on the one of an earlier start."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connect, self._host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Cut every connection and stop listening: the next connect is refused."""
        if self._server is not None:
            self._server.close()
            for _ in range(_TURNS):
                await asyncio.sleep(0.0)
            self.cut()
            await self._server.wait_closed()
            self._server = None

    def desert(self) -> None:
        """Refuse new connections and close idle ones; answers under way stay open, as when a server is stopped."""
        if self._server is not None:
            self._server.close()
        for line in tuple(self.lines):
            if not line.answering:
                line.close()

    def cut(self) -> None:
        """Reset every connection that is open now."""
        for line in tuple(self.lines):
            line.reset()

    def forget(self) -> None:
        """Answer politely again and start every count and record anew."""
        self.script = answer_politely
        self.on_connect = self.on_scrape = None
        self.health = 200
        self.received = []
        self.connected = self.aborted = self.scrapes = self.sent_bytes = 0

    def _connect(self) -> ScriptedConnection:
        self.connected += 1
        return ScriptedConnection(self, self.connected)

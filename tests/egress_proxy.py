"""The HTTP proxy of a company: CONNECT alone, on a real socket, to hosts that only it can look up."""

import asyncio
import contextlib
from base64 import b64encode
from collections.abc import Mapping

from millgate.testing.service import Service


class EgressProxy(Service):
    """Tunnels `CONNECT host:port` to the port of this machine that `routes` has for it; `asked` is every head that came.

    With `login` (`user:password`) it wants that. `says` are the pieces of every answer in place of its own, an empty list is
    silence; then it waits for the end, or `hangs_up`.
    """

    def __init__(self, routes: Mapping[str, int] | None = None, login: str = "") -> None:
        self.routes = dict(routes or {})
        self.login = login
        self.says: list[bytes] | None = None
        self.hangs_up = False
        self.asked: list[bytes] = []
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen, on the port of before where there was one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Cut every tunnel, and listen no more."""
        if self._server is not None:
            self._server.close()
            self.cut()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._server.wait_closed()
            self._server = None

    def cut(self) -> None:
        """Cut every tunnel."""
        for task in self._tasks:
            task.cancel()

    @property
    def connections(self) -> int:
        """How many connections are open to it."""
        return len(self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._answer(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head)
        port = self.routes.get(head.split()[1].decode(), 0)
        says = self.says
        if says is None and self.login and b"Basic " + b64encode(self.login.encode()) not in head:
            says = [
                b"HTTP/1.1 407 Authenticate\r\nproxy-authenticate: Basic\r\ncontent-length: 5\r\n\r\nlogin"
            ]
        elif says is None and not port:
            says = [b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n"]
        if says is None:
            try:
                far = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                says = [b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n"]
            else:
                await _tunnel(reader, writer, *far)
        for piece in says or ():
            writer.write(piece)
            await asyncio.sleep(0.002)
        if says is not None and not self.hangs_up:
            await reader.read()


async def _tunnel(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    far_reader: asyncio.StreamReader,
    far_writer: asyncio.StreamWriter,
) -> None:
    """Carry bytes both ways until one side has ended."""
    writer.write(b"HTTP/1.0 200 Connection established\r\nvia: 1.1 egress\r\n\r\n")
    both = [asyncio.create_task(_pipe(reader, far_writer)), asyncio.create_task(_pipe(far_reader, writer))]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in both:
            each.cancel()
        far_writer.transport.abort()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()

"""A TCP proxy that breaks connections in the ways that networks do, between any two peers.

    with FaultProxy(engine.port) as proxy:
        proxy.to_client = Faults(latency_s=0.2, reset_after_bytes=500)
        ...  # point a gateway at proxy.url

Faults are plain data, one record per direction, and may be replaced at any time: what is under way sees the new
record with its next piece. Everything is deterministic; there are no dice.
"""

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass

from millgate.testing.service import Service

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_READ_BYTES = 64 * 1024
_PIECES_IN_FLIGHT = 64
"""How many pieces one direction may hold back by latency: 4 MB at most, beyond it the sender is slowed by TCP."""


@dataclass(frozen=True, slots=True)
class Faults:
    """What happens to the bytes of one direction; the default is nothing at all.

    `latency_s` delays every byte; `bytes_per_s` bounds the rate; `slice_bytes` sends pieces of at most so many
    bytes, each in its own segment. `corrupt_at` flips every bit of the byte at this offset of a connection.
    `limit_bytes` closes cleanly (FIN) after so many bytes, `reset_after_bytes` cuts (RST). A `blackhole` swallows
    everything and keeps the connection open.
    """

    latency_s: float = 0.0
    bytes_per_s: float | None = None
    slice_bytes: int | None = None
    corrupt_at: int | None = None
    limit_bytes: int | None = None
    reset_after_bytes: int | None = None
    blackhole: bool = False


NO_FAULTS = Faults()


class FaultProxy(Service):
    """Relays connections to `host:port` and does to them what `to_server` and `to_client` say.

    With `accepting` False new connections are reset at once. `connected` counts connections, `to_server_bytes`
    and `to_client_bytes` what has been passed on.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.to_server = NO_FAULTS
        self.to_client = NO_FAULTS
        self.accepting = True
        self.connected = 0
        self.to_server_bytes = 0
        self.to_client_bytes = 0
        self.port = 0
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()

    @property
    def url(self) -> str:
        """The proxy's own address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def open(self) -> int:
        """How many connections are relayed now."""
        return len(self._pairs)

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Cut every connection and stop listening."""
        if self._server is not None:
            self._server.close()
            self.cut()
            await self._server.wait_closed()
            while self._pairs:  # noqa: ASYNC110 - a pair ends within a turn of the loop
                await asyncio.sleep(0.001)
            self._server = None

    def cut(self) -> None:
        """Reset every connection, on both sides."""
        for pair in tuple(self._pairs):
            pair.cut()

    def heal(self) -> None:
        """Take every fault away; connections that were cut stay cut."""
        self.to_server = self.to_client = NO_FAULTS
        self.accepting = True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connected += 1
        if not self.accepting:
            _reset(writer)
            return
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._target)
        except OSError:
            _reset(writer)
            return
        if self._server is None or not self._server.is_serving():
            # It was stopped in between, and has cut what it knew.
            _reset(writer)
            _reset(server_writer)
            return
        pair = _Pair(self, (reader, server_writer), (server_reader, writer))
        self._pairs.add(pair)
        try:
            await pair.run()
        finally:
            self._pairs.discard(pair)


_Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Pair:
    """One relayed connection: two directions that end together when either is cut."""

    def __init__(self, proxy: FaultProxy, onward: _Ends, back: _Ends) -> None:
        self._proxy = proxy
        self._onward = onward
        self._back = back
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Relay until both directions are closed or one is broken."""
        for _reader, writer in (self._onward, self._back):
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(_Direction(self._proxy, to_server=True, ends=self._onward).run()),
            loop.create_task(_Direction(self._proxy, to_server=False, ends=self._back).run()),
        ]
        try:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
            broken = bool([task for task in self._tasks if task.done() and _failed(task)])
        finally:
            for task in self._tasks:
                task.cancel()
        for _reader, writer in (self._onward, self._back):
            if broken:
                _reset(writer)
            else:
                writer.close()

    def cut(self) -> None:
        for task in self._tasks:
            task.cancel()
        for _reader, writer in (self._onward, self._back):
            _reset(writer)


class _Direction:
    """Moves the bytes of one direction, late, slowly, in slices, damaged, or not at all."""

    def __init__(self, proxy: FaultProxy, *, to_server: bool, ends: _Ends) -> None:
        self._proxy = proxy
        self._to_server = to_server
        self._reader, self._writer = ends
        self._passed_bytes = 0
        self._pieces: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue(_PIECES_IN_FLIGHT)

    @property
    def _faults(self) -> Faults:
        return self._proxy.to_server if self._to_server else self._proxy.to_client

    async def run(self) -> None:
        """Relay to the end of the input; raise ConnectionError when the connection is to be cut."""
        reading = asyncio.ensure_future(self._read())
        try:
            while True:
                due, piece = await self._pieces.get()
                await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
                if piece is None:
                    raise ConnectionAbortedError("the sender has cut the connection")
                if not piece:
                    break
                await self._pass_on(piece)
        finally:
            reading.cancel()
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    async def _read(self) -> None:
        """Stamp what comes with the time at which it may leave; an empty piece is the end, None a reset."""
        loop = asyncio.get_running_loop()
        piece: bytes | None = b"-"
        while piece:
            try:
                piece = await self._reader.read(_READ_BYTES)
            except ConnectionError:
                piece = None
            await self._pieces.put((loop.time() + self._faults.latency_s, piece))

    async def _pass_on(self, piece: bytes) -> None:
        begin = 0
        while begin < len(piece):
            faults = self._faults
            if faults.blackhole:
                return
            size = self._next_size(faults, len(piece) - begin)
            await self._send(faults, piece[begin : begin + size])
            begin += size

    def _next_size(self, faults: Faults, left: int) -> int:
        """Return how many bytes go next, so that every fault falls on its exact byte."""
        sizes = [left]
        if faults.slice_bytes is not None:
            sizes.append(faults.slice_bytes)
        for bound in (faults.limit_bytes, faults.reset_after_bytes):
            if bound is not None:
                if self._passed_bytes >= bound:
                    raise ConnectionAbortedError("the fault proxy cuts here")
                sizes.append(bound - self._passed_bytes)
        return min(sizes)

    async def _send(self, faults: Faults, data: bytes) -> None:
        offset = None if faults.corrupt_at is None else faults.corrupt_at - self._passed_bytes
        if offset is not None and 0 <= offset < len(data):
            data = data[:offset] + bytes((data[offset] ^ 0xFF,)) + data[offset + 1 :]
        self._writer.write(data)
        await self._writer.drain()
        self._passed_bytes += len(data)
        if self._to_server:
            self._proxy.to_server_bytes += len(data)
        else:
            self._proxy.to_client_bytes += len(data)
        if faults.bytes_per_s is not None or faults.slice_bytes is not None:
            # At least one turn of the loop, so that each slice leaves in a segment of its own.
            await asyncio.sleep(len(data) / faults.bytes_per_s if faults.bytes_per_s else 0)
        self._end_if_due(faults)

    def _end_if_due(self, faults: Faults) -> None:
        if faults.limit_bytes is not None and self._passed_bytes >= faults.limit_bytes:
            raise _CleanEndError
        if faults.reset_after_bytes is not None and self._passed_bytes >= faults.reset_after_bytes:
            raise ConnectionAbortedError("the fault proxy cuts here")


class _CleanEndError(Exception):
    """This connection ends here, with FIN."""


def _failed(task: asyncio.Task[None]) -> bool:
    return not task.cancelled() and not isinstance(task.exception(), _CleanEndError | None)


def _reset(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()

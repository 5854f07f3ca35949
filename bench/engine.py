"""A trivial engine, faster than any proxy in front of it: every answer is prebuilt, nothing is computed.

`python -m bench.engine PORT SPACING_MS` serves 127.0.0.1:PORT until it is terminated.
"""

import asyncio
import socket
import sys
import time
from typing import cast

import uvloop

from bench import wire

_PLAIN = wire.stream_writes(with_usage=False)
_WITH_USAGE = wire.stream_writes(with_usage=True)

_ACCEPTS_PER_TURN = 8

_GETS = {b"/v1/models": wire.MODELS_ANSWER, b"/metrics": wire.METRICS_ANSWER}


class _Connection(asyncio.Protocol):
    """One kept connection: a request is whole when its announced length has arrived, an answer follows at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, spacing_s: float) -> None:
        self._loop = loop
        self._spacing_s = spacing_s
        self._pending = b""
        self._left: tuple[bytes, ...] = ()
        self._next = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class, not a subclass

    def data_received(self, data: bytes) -> None:
        """Answer when the request is whole."""
        if self._pending:
            data = self._pending + data
        end = data.find(b"\r\n\r\n")
        if end < 0 or len(data) < end + 4 + _content_length(data, end):
            self._pending = data
            return
        self._pending = b""
        self._answer(data)

    def _answer(self, request: bytes) -> None:
        if not request.startswith(b"POST"):
            self._transport.write(_GETS.get(request.split(b" ", 2)[1], wire.HEALTH_ANSWER))
        elif b'"stream":true' in request:
            self._stream(request)
        else:
            self._transport.write(wire.JSON_ANSWER)

    def _stream(self, request: bytes) -> None:
        self._left = _WITH_USAGE if b'"include_usage"' in request else _PLAIN
        self._next = 0
        self._transport.write(wire.STREAM_HEAD)
        if b'"model":"%s"' % wire.STAMPED_MODEL in request:
            self._write_stamped()
        elif b'"model":"%s"' % wire.HOLD_MODEL in request:
            self._transport.write(self._left[0])
        else:
            self._loop.call_later(self._spacing_s, self._write_next)

    def _write_next(self) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(self._left[self._next])
        self._next += 1
        if self._next < len(self._left):
            self._loop.call_later(self._spacing_s, self._write_next)

    def _write_stamped(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(wire.stamped_event(time.perf_counter_ns()))
            self._loop.call_later(self._spacing_s, self._write_stamped)


def _content_length(data: bytes, end: int) -> int:
    """Return the announced length of the body whose head ends at `end`; 0 when none is announced."""
    at = data.find(b"ontent-", 0, end)
    while at >= 0:
        if data[at + 7 : at + 14].lower() == b"length:":
            return int(data[at + 14 : data.find(b"\r", at)])
        at = data.find(b"ontent-", at + 7, end)
    return 0


async def _serve(port: int, spacing_s: float) -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", port), backlog=4096) as sock:
        sock.setblocking(False)
        # libuv takes one connection from each descriptor in a turn: with one the engine would be the queue.
        for _ in range(_ACCEPTS_PER_TURN):
            await loop.create_server(lambda: _Connection(loop, spacing_s), sock=sock.dup(), backlog=4096)
        await loop.create_future()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), float(sys.argv[2]) / 1000))

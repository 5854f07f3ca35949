"""The users of the bench: kept connections in a closed loop, as cheap as a Python protocol can be.

Nothing is parsed that need not be: an answer is whole when its announced length, or its last chunk, has come.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, cast

from bench import wire

_ROUND_TIMEOUT_S = 120.0
_LAST_CHUNK = b"0\r\n\r\n"


class BenchError(Exception):
    """What was to be measured did not happen; a figure would be a lie."""


class Served(NamedTuple):
    """What one round of load received: whole answers, events with content, and reads that carried any."""

    answers: int
    chunks: int
    reads: int
    elapsed_s: float


class _User(asyncio.Protocol):
    """One connection that asks, waits for the whole answer, and asks again while numbers last."""

    def __init__(self, crowd: "_Crowd") -> None:
        self._crowd = crowd
        self._answer = b""
        self._chunks = 0
        self._started = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; the crowd says when to start."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own class, not a subclass

    def connection_lost(self, exc: Exception | None) -> None:
        """A closed connection before the last answer spoils the round."""
        self._crowd.fail(f"a connection was closed early: {exc or 'no reason given'}")

    def _go_on(self) -> None:
        """Ask again at once, or when the crowd's pace asks for it."""
        if self._crowd.resting is not None:
            self._crowd.resting.append(self)
        else:
            self.ask()

    def ask(self) -> None:
        """Send the next request, or leave when the numbers are used up."""
        if self._crowd.over:
            return
        number = next(self._crowd.numbers, None)
        if number is None:
            self._crowd.leave()
            return
        self.transport.write(self._crowd.request.numbered(number))

    def data_received(self, data: bytes) -> None:
        """Count what came; ask again when the answer is whole."""
        if self._crowd.stream:
            self._read_stream(data)
        else:
            self._read_whole(data)

    def _read_whole(self, data: bytes) -> None:
        if self._answer:
            data = self._answer + data
        end = data.find(b"\r\n\r\n")
        at = data.find(b"ength: ")
        if end < 0 or not 0 < at < end or len(data) < end + 4 + int(data[at + 7 : data.find(b"\r", at)]):
            self._answer = data
            return
        self._answer = b""
        self._check(data)
        self._crowd.answers += 1
        self._go_on()

    def _read_stream(self, data: bytes) -> None:
        if not self._started:
            self._check(data)
            self._started = True
        events = data.count(b"data: ")
        self._chunks += events
        self._crowd.reads += events > 0
        if data.endswith(_LAST_CHUNK):
            self._end_stream()

    def _end_stream(self) -> None:
        if self._chunks != wire.CHUNKS_PER_STREAM + 1:
            self._crowd.fail(f"a stream had {self._chunks} events, not {wire.CHUNKS_PER_STREAM} and [DONE]")
            return
        self._chunks = 0
        self._started = False
        self._crowd.answers += 1
        self._crowd.chunks += wire.CHUNKS_PER_STREAM
        self.ask()

    def _check(self, data: bytes) -> None:
        if data[9:12] != self._crowd.status:
            self._crowd.fail(f"expected status {self._crowd.status.decode()}, got: {data[:600]!r}")


class _Crowd:
    """All users of one round and what they have counted together."""

    def __init__(self, numbers: Iterator[int], *, stream: bool, status: bytes) -> None:
        self.numbers = numbers
        self.stream = stream
        self.request = wire.chat_request(stream=stream)
        self.status = status
        self.answers = 0
        self.chunks = 0
        self.reads = 0
        self.resting: deque[_User] | None = None
        self._present = 0
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, port: int, users: int, per_s: float | None, within_s: float) -> Served:
        """Connect all users, start them a little apart or at a pace, and wait until the last answer is whole."""
        loop = asyncio.get_running_loop()
        self._present = users
        crowd = [await loop.create_connection(lambda: _User(self), "127.0.0.1", port) for _ in range(users)]
        started_s = time.perf_counter()
        if per_s is not None:
            self.resting = deque(user for _, user in crowd)
            self._pace(per_s, started_s, 0)
        else:
            for index, (_, user) in enumerate(crowd):
                loop.call_later(index * 0.0002, user.ask)
        try:
            await asyncio.wait_for(self._done, within_s)
        except TimeoutError:
            raise BenchError(f"the round did not end within {within_s:.0f} s") from None
        finally:
            for transport, _ in crowd:
                transport.abort()
        return Served(self.answers, self.chunks, self.reads, time.perf_counter() - started_s)

    def _pace(self, per_s: float, started_s: float, asked: int) -> None:
        """Let as many resting users ask as are due by now, look again a millisecond later, and go at the end."""
        assert self.resting is not None
        due = int((time.perf_counter() - started_s) * per_s)
        while asked < due and self.resting:
            self.resting.popleft().ask()
            asked += 1
        if not self.over:
            asyncio.get_running_loop().call_later(0.001, self._pace, per_s, started_s, asked)

    @property
    def over(self) -> bool:
        """Whether the round has ended, well or badly."""
        return self._done.done()

    def leave(self) -> None:
        """One user has no more to ask."""
        self._present -= 1
        if self._present == 0 and not self._done.done():
            self._done.set_result(None)

    def fail(self, message: str) -> None:
        """End the round without a figure."""
        if not self._done.done():
            self._done.set_exception(BenchError(message))


async def send(
    port: int,
    numbers: range,
    *,
    users: int,
    stream: bool,
    status: bytes = b"200",
    per_s: float | None = None,
    within_s: float = _ROUND_TIMEOUT_S,
) -> Served:
    """Send one request per number over `users` kept connections and return what was received.

    Each user asks again as soon as it is answered; with `per_s` (whole answers only) requests leave at that rate.
    Raises BenchError when an answer has another status, a stream other events, a connection closes early, or it takes too long.
    """
    return await _Crowd(iter(numbers), stream=stream, status=status).run(port, users, per_s, within_s)


class Holder(asyncio.Protocol):
    """One user whose answer never ends: it takes a permit and keeps it until `leave`."""

    def __init__(self) -> None:
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def arrive(self, port: int) -> None:
        """Ask for the endless answer and wait for its first event."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_connection(lambda: self, "127.0.0.1", port)
        self._transport.write(wire.chat_request(stream=True, model=wire.HOLD_MODEL).numbered(0))
        await asyncio.wait_for(self._started, 10)

    def data_received(self, data: bytes) -> None:
        """The first event means that the permit is taken."""
        if b"data: " in data and not self._started.done():
            self._started.set_result(None)

    def leave(self) -> None:
        """Hang up."""
        self._transport.abort()

"""Users of the soak: most are polite, one in a hundred does each thing that clients do wrong."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping

from faults import corpus
from faults.soak.connection import NOTHING, Connection, Seen
from faults.soak.engines import SHARE
from faults.soak.ledger import Entry, Ledger
from faults.talk import chat, request

_MEAN_PAUSE_S = 0.3
_MOST_PAUSE_S = 1.0
"""Far below the idle time after which the gate closes a kept connection, perhaps just when the next request comes."""
_MOST_RETRIES = 3
_SOON_S = 0.3
"""Within such a time requests are queued, admitted and begun."""
_NEVER_READS_S = 2.5
_PATIENCE_S = 30.0
"""Nobody who waits politely goes without an answer for so long."""
_SMALL_BUFFER_BYTES = 4096


class User:
    """One user who asks again and again, in a different way each time.

    Where it is `crowded` the gate may have no room for a connection, and says so with a 503 or not at all: what was
    sent on it is no attempt.
    """

    def __init__(
        self, port: int, name: str, dice: random.Random, ledger: Ledger, *, crowded: bool = False
    ) -> None:
        self._port = port
        self._crowded = crowded
        self._name = name
        self._dice = dice
        self._ledger = ledger
        self._asked = 0
        self._bodies = 0
        self._connection: Connection | None = None

    async def run(self, over: asyncio.Event) -> None:
        """Ask until it is over; what is under way then is finished."""
        while not over.is_set():
            at = int(self._dice.random() / SHARE)
            name = list(BEHAVIOURS)[at] if at < len(BEHAVIOURS) else "polite"
            self._ledger.behaviours[name] += 1
            await BEHAVIOURS.get(name, User.politely)(self)
            await asyncio.sleep(min(self._dice.expovariate(1 / _MEAN_PAUSE_S), _MOST_PAUSE_S))
        self._close()

    # ---- one request

    def _body(self, *, may_stream: bool = True) -> bytes:
        """Return what nobody else asks; every third is large, every second asks for a stream."""
        self._bodies += 1
        content = f"{self._name}, question {self._bodies} " + "x" * self._dice.choice((20, 200, 3_000))
        return chat(content, stream=may_stream and self._dice.random() < 0.5, max_tokens=64)

    def _request(self, *lines: str, body: bytes | None = None) -> tuple[str, bytes]:
        """Return a request and the id of this attempt at it."""
        self._asked += 1
        name = f"{self._name}-{self._asked:06d}"
        return name, request(body or self._body(), f"x-request-id: {name}", *lines)

    async def _open(self, *, receive_bytes: int | None = None, read_bytes: int = 65_536) -> Connection:
        """Return a new connection, in place of the kept one."""
        self._close()
        connection = Connection(receive_bytes=receive_bytes, read_bytes=read_bytes)
        await connection.connect(self._port)
        return connection

    async def _kept(self) -> Connection:
        kept, self._connection = self._connection, None
        return kept or await self._open()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _enter(self, name: str, saw: Seen | None, *, sure: bool = True) -> None:
        told = saw is not None and saw.status and (saw.status != 503 or saw.reason)
        self._ledger.entries[name] = Entry(sure and bool(told or not self._crowded), saw)

    async def _hear(self, connection: Connection, name: str) -> Seen:
        """Read the answer of a request, write down what was seen, and keep the connection where it may be kept."""
        try:
            saw = await asyncio.wait_for(connection.answer(), _PATIENCE_S)
        except TimeoutError:
            saw = NOTHING
        self._enter(name, saw)
        if saw.kept:
            self._connection = connection
        else:
            connection.close()
        return saw

    async def _ask(self, body: bytes, *lines: str) -> Seen:
        name, data = self._request(*lines, body=body)
        connection = await self._kept()
        await connection.send(data)
        return await self._hear(connection, name)

    # ---- behaviours

    async def politely(self) -> None:
        """Wait for the answer; when refused, come back when told."""
        await self._ask_again(lambda saw: saw.retry_after_s)

    async def back_at_once(self) -> None:
        """When refused, come back at once, labelled as a retry."""
        await self._ask_again(lambda _saw: 0.01)

    async def _ask_again(self, pause_s: Callable[[Seen], float]) -> None:
        body = self._body()
        saw = await self._ask(body)
        for attempt in range(1, _MOST_RETRIES + 1):
            if not saw.reason or not saw.retry_after_s:
                return
            if pause_s(saw) > _MOST_PAUSE_S:
                self._close()
            await asyncio.sleep(min(pause_s(saw), 3 * _MOST_PAUSE_S))
            saw = await self._ask(body, f"x-stainless-retry-count: {attempt}")

    async def _leave(self, leave: Callable[[Connection], None], *, after_s: float, sure: bool) -> None:
        name, data = self._request()
        connection = await self._kept()
        await connection.send(data)
        await asyncio.sleep(after_s)
        self._enter(name, None, sure=sure and not connection.is_given_up())
        leave(connection)

    async def leaves_at_once(self) -> None:
        """Send a request and hang up."""
        await self._leave(Connection.close, after_s=0.0, sure=True)

    async def leaves_soon(self) -> None:
        """Hang up while queued or before the first token."""
        await self._leave(Connection.close, after_s=self._dice.uniform(0.0, _SOON_S), sure=True)

    async def resets_soon(self) -> None:
        """Leave with a reset: whether the gate has read the request then, nobody knows."""
        await self._leave(Connection.reset, after_s=self._dice.uniform(0.0, _SOON_S), sure=False)

    async def _leave_within(self, leave: Callable[[Connection], None]) -> None:
        name, data = self._request()
        connection = await self._kept()
        await connection.send(data)
        heard = await connection.more()
        await asyncio.sleep(self._dice.uniform(0.0, _SOON_S))
        self._enter(name, None, sure=heard and not connection.is_given_up())
        leave(connection)

    async def leaves_within(self) -> None:
        """Hang up when the answer has begun."""
        await self._leave_within(Connection.close)

    async def resets_within(self) -> None:
        """Leave with a reset when the answer has begun."""
        await self._leave_within(Connection.reset)

    async def half_closes(self) -> None:
        """Say that nothing more will be asked, which counts as a hang-up, and read on."""
        name, data = self._request()
        connection = await self._kept()
        await connection.send(data)
        await asyncio.sleep(self._dice.uniform(0.0, _SOON_S))
        sure = not connection.is_given_up()
        connection.half_close()
        saw = await self._hear(connection, name)
        if not saw.whole:
            self._enter(name, None, sure=sure)
        self._close()

    async def reads_slowly(self) -> None:
        """Read a kilobyte at a time, with pauses."""
        connection = await self._open(receive_bytes=_SMALL_BUFFER_BYTES, read_bytes=1024)
        connection.dawdle_s = 0.002
        name, data = self._request()
        await connection.send(data)
        await self._hear(connection, name)
        self._close()

    async def never_reads(self) -> None:
        """Read nothing at all until the gate has had enough."""
        connection = await self._open(receive_bytes=_SMALL_BUFFER_BYTES)
        name, data = self._request()
        await connection.send(data)
        await asyncio.sleep(_NEVER_READS_S)
        self._enter(name, None, sure=not connection.is_given_up())
        connection.close()

    async def impatient(self) -> None:
        """Tell a short read timeout, and keep to it."""
        name, data = self._request("x-stainless-read-timeout: 0.3")
        connection = await self._kept()
        await connection.send(data)
        try:
            self._enter(name, await asyncio.wait_for(connection.answer(), 0.3))
        except TimeoutError:
            self._enter(name, None, sure=not connection.is_given_up())
        connection.close()

    async def half_a_request(self) -> None:
        """Leave within the body: that is no attempt."""
        _name, data = self._request()
        connection = await self._kept()
        await connection.send(data[:-10])
        await asyncio.sleep(self._dice.uniform(0.0, _SOON_S))
        connection.close()

    async def no_request(self) -> None:
        """Send what must be refused: that is no attempt either."""
        connection = await self._open()
        await connection.send(self._dice.choice(corpus.REFUSED).payload)
        connection.half_close()
        while await connection.more():
            pass
        connection.close()

    async def two_at_once(self) -> None:
        """Send two requests in one segment; the second is served only where the connection is kept."""
        (first, one), (second, other) = (self._request(body=self._body(may_stream=False)) for _ in range(2))
        connection = await self._kept()
        await connection.send(one + other)
        saw = await self._hear(connection, first)
        self._enter(second, None, sure=False)
        if saw.kept:
            await self._hear(await self._kept(), second)

    async def byte_by_byte(self) -> None:
        """Send a request slowly, in pieces of a few bytes."""
        name, data = self._request()
        connection = await self._kept()
        for begin in range(0, len(data), 16):
            await connection.send(data[begin : begin + 16])
            await asyncio.sleep(0)
        saw = await self._hear(connection, name)
        if saw.status == 408:  # on a busy machine it takes longer than the gate waits, and is no attempt then
            self._enter(name, saw, sure=False)


BEHAVIOURS: Mapping[str, Callable[[User], Awaitable[None]]] = {
    "leaves at once": User.leaves_at_once,
    "leaves soon": User.leaves_soon,
    "resets soon": User.resets_soon,
    "leaves within": User.leaves_within,
    "resets within": User.resets_within,
    "half-closes": User.half_closes,
    "reads slowly": User.reads_slowly,
    "never reads": User.never_reads,
    "impatient": User.impatient,
    "half a request": User.half_a_request,
    "no request": User.no_request,
    "two at once": User.two_at_once,
    "byte by byte": User.byte_by_byte,
    "back at once": User.back_at_once,
}
"""What a user does in one of a hundred turns each; in all others it is polite."""

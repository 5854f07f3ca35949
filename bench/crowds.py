"""Many streams at once: every event says when it was written, so that its delay is known when it is read."""

import asyncio
import time
from array import array
from collections.abc import Sequence
from typing import NamedTuple, cast

from bench import wire
from bench.load import BenchError

_START_SPACING_S = 0.001
"""Between the requests of two streams: what a thousand users a second are."""
_HOLD_S = 4.0
"""How long all streams run together while their delays are noted."""
_BEGIN_WITHIN_S = 20.0
_LOOK_S = 0.2


class Delays(NamedTuple):
    """Seconds, sorted: from a request to its first event, and from the writing of an event to its reading."""

    first_s: Sequence[float]
    event_s: Sequence[float]


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of the sorted values does not exceed."""
    return values[min(len(values) - 1, int(share * len(values)))]


class _Reader(asyncio.Protocol):
    """One stream: asks once and reads until it is cut."""

    def __init__(self, crowd: "Crowd") -> None:
        self._crowd = crowd
        self._asked_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; the crowd says when to ask."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own class, not a subclass

    def ask(self, request: bytes) -> None:
        """Send the one request."""
        self._asked_s = time.perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Note how long the events in these bytes took."""
        now_ns = time.perf_counter_ns()
        crowd = self._crowd
        delays = [(now_ns - stamp) / 1e9 for stamp in wire.stamps(data)]
        if self._asked_s and delays:
            crowd.first_s.append(now_ns / 1e9 - self._asked_s)
            self._asked_s = 0.0
        if crowd.noting:
            crowd.event_s.extend(delays)

    def connection_lost(self, _exc: Exception | None) -> None:
        """An end before the crowd's own spoils the figures."""
        self._crowd.lost += 1


class Crowd:
    """Opens `count` streams through one port, watches them run together, and cuts them."""

    def __init__(self, port: int, count: int) -> None:
        self._port = port
        self._count = count
        self._readers: list[_Reader] = []
        self.first_s = array("d")
        self.event_s = array("d")
        self.noting = False
        self.lost = 0

    async def __aenter__(self) -> Delays:
        """Start the streams a millisecond apart, note the delays of all together, and leave them running."""
        loop = asyncio.get_running_loop()
        request = wire.chat_request(stream=True, model=wire.STAMPED_MODEL)
        for number in range(self._count):
            _, reader = await loop.create_connection(lambda: _Reader(self), "127.0.0.1", self._port)
            self._readers.append(reader)
            reader.ask(request.numbered(number))
            await asyncio.sleep(_START_SPACING_S)
        await self._all_begun()
        self.noting = True
        await asyncio.sleep(_HOLD_S)
        self.noting = False
        return Delays(sorted(self.first_s), sorted(self.event_s))

    async def _all_begun(self) -> None:
        by_s = time.perf_counter() + _BEGIN_WITHIN_S
        while len(self.first_s) < self._count or self.lost:
            if self.lost or time.perf_counter() > by_s:
                raise BenchError(
                    f"of {self._count} streams {len(self.first_s)} began and {self.lost} broke off"
                )
            await asyncio.sleep(_LOOK_S)

    async def __aexit__(self, *_error: object) -> None:
        """Hang up on all of them."""
        for reader in self._readers:
            reader.transport.abort()
        await asyncio.sleep(0)

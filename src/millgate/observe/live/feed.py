"""The live feed: one picture twice a second for all watchers, as server-sent events.

A frame is painted and encoded once and the same bytes go to all. Every watcher waits for the *next* frame, so one
that cannot take frames misses some and nothing is kept for it. Without watchers no timer runs. Server-sent events are
the HTML standard's, section 9.2: `event:` and `data:` lines, an empty line after each event.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from millgate.observe.live.decision_history import HistoryPoint
from millgate.observe.live.picture import Picture

FRAME_EVERY_S: Final = 0.5
MOST_WATCHERS: Final = 64
"""With a stalled peer each holds a frame and one send buffer of 64 KB (INV-5)."""


class TooManyWatchersError(Exception):
    """As many watch as may."""


class PagePainter(Protocol):
    """What a feed shows."""

    def paint(self) -> Picture:
        """Return the picture of this instant."""

    def history(self) -> tuple[HistoryPoint, ...]:
        """Return the last ten minutes, oldest first."""


_Model = TypeVar("_Model", bound=PagePainter)


class LiveFeed(Generic[_Model]):
    """Frames for up to `MOST_WATCHERS`; each joins, reads `frames`, and leaves. Lives on one loop."""

    def __init__(self, page_model: _Model) -> None:
        self.page_model = page_model
        self.watchers = 0
        self._frame = b""
        self._next = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def join(self) -> None:
        """Count a watcher in; raises TooManyWatchersError. A watcher that has joined must leave."""
        if self.watchers >= MOST_WATCHERS:
            raise TooManyWatchersError
        if self._timer is None and not self._closed:
            self._beat()
        self.watchers += 1

    def leave(self) -> None:
        """Count a watcher out; the last one stops the painting."""
        self.watchers -= 1
        if not self.watchers:
            self._stop()

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Give the history, the present frame, and then every new frame; no frame waits for a slow watcher."""
        yield _event("history", self.page_model.history())
        yield self._frame
        while not self._closed:
            await self._next.wait()
            if not self._closed:
                yield self._frame

    def close(self) -> None:
        """End all streams; a feed that is closed stays so."""
        self._closed = True
        self._stop()
        self._next.set()

    def _beat(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(FRAME_EVERY_S, self._beat)
        self._frame = _event("picture", self.page_model.paint())
        painted, self._next = self._next, asyncio.Event()
        painted.set()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _event(name: str, content: object) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(content) + b"\n\n"

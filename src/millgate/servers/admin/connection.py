"""A connection of the admin door within bounds: uvicorn has none for a head, for silence, and for clients that do not read.

Any client that reaches the door can connect; the token is asked for in a request. So before a request is whole nothing of
it may grow, and no number of connections may keep an operator out.
"""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from millgate.observe.live.feed import MOST_WATCHERS

MOST_CONNECTIONS: Final = MOST_WATCHERS + 64
"""All watchers, and beside them a scraper, a probe, a curious operator."""
MOST_HEAD_BYTES: Final = 32 * 1024
"""Four times as much as browsers send of cookies."""
MOST_REQUEST_BYTES: Final = 192 * 1024
"""The longest head, and twice the longest body that is read."""
REQUEST_WITHIN_S: Final = 10.0
"""As long as a head may take at the HTTP door."""
READ_WITHIN_S: Final = 30.0
"""As long as a client may read nothing at the HTTP door."""
_MOST_PIPELINED: Final = 16
_FIELD_BYTES: Final = len(": \r\n")


class FloodError(Exception):
    """A head is too long, or too many requests came before the first was answered."""


class AdminConnection(HttpToolsProtocol):
    """Cuts a request that is too long or too slow, and a client that does not read.

    Where there are `MOST_CONNECTIONS`, a newcomer takes the place of the one that has said nothing for the longest.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._request_bytes = self._head_bytes = 0
        self._late: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self.heard_at = self.loop.time()

    # ---- asyncio's side

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request."""
        super().connection_made(transport)
        self._late = self.loop.call_later(REQUEST_WITHIN_S, transport.abort)
        self._make_room()

    def data_received(self, data: bytes) -> None:
        """Read on, up to the bound of one request."""
        self.heard_at = self.loop.time()
        self._request_bytes += len(data)
        if self._request_bytes > MOST_REQUEST_BYTES:
            self.transport.abort()
        else:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._on_time()
        self._moving()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Give a client that does not read its time."""
        super().pause_writing()
        self._stalled = self.loop.call_later(READ_WITHIN_S, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads."""
        self._moving()
        super().resume_writing()

    # ---- the parser's side

    def on_message_begin(self) -> None:
        """Take the next request; raises FloodError, which ends the parser and is answered with 400."""
        if len(self.pipeline) >= _MOST_PIPELINED:
            raise FloodError
        self._head_bytes = 0
        super().on_message_begin()
        if self._late is None:
            self._late = self.loop.call_later(REQUEST_WITHIN_S, self.transport.abort)

    def on_url(self, url: bytes) -> None:
        """Take a piece of the target; raises FloodError."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field of the head, or a trailer; raises FloodError."""
        self._count(len(name) + len(value) + _FIELD_BYTES)
        super().on_header(name, value)

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._on_time()
        self._request_bytes = 0
        super().on_message_complete()

    # ---- within

    def _count(self, size_bytes: int) -> None:
        self._head_bytes += size_bytes
        if self._head_bytes > MOST_HEAD_BYTES:
            raise FloodError

    def _on_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _moving(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    @property
    def is_waited_for(self) -> bool:
        """Whether it owes a request, or may: nothing is being answered."""
        cycle: RequestResponseCycle | None = self.cycle
        return self._late is not None or cycle is None or cycle.response_complete

    def _make_room(self) -> None:
        """Cut the one that has been waited for the longest where there are too many, this one if none is."""
        others = [each for each in self.connections if isinstance(each, AdminConnection) and each is not self]
        still_open = [each for each in others if not each.transport.is_closing()]
        if len(still_open) < MOST_CONNECTIONS:
            return
        waited_for = [each for each in still_open if each.is_waited_for]
        min(waited_for, key=lambda each: each.heard_at, default=self).transport.abort()

"""Serving the admin application inside a running loop: no signal handlers, no log lines, a clean end.

uvicorn is written to be the process; here it is a guest. It gets a socket that is already bound, so that a taken
port is an OSError before anything runs, and it never touches signals.

It has no bounds for a head, for silence, and for clients that do not read, so connections have them here. Any client that
reaches the door can connect; the token is asked for in a request. So before a request is whole nothing of it may grow, and no
number of connections may keep an operator out.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterable, Iterator
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from millgate.observe.live.feed import MOST_WATCHERS
from millgate.servers.admin.app import build_app
from millgate.servers.admin.guard import is_loopback
from millgate.servers.admin.source import AdminSource, LocalSource, Views

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


_KEEP_ALIVE_S = 75  # longer than the usual 15-60 s between two scrapes
_GRACE_S = 1


class _Guest(uvicorn.Server):
    """A uvicorn server that leaves the process's signals alone and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.settled = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; `settled` is set whether or not that worked."""
        try:
            await super().startup(sockets=sockets)
        finally:
            self.settled.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none: the gateway owns them."""
        yield


class AdminServer:
    """The admin door on one address; `start` and `stop` once each, in the same loop."""

    def __init__(
        self,
        views: Views | AdminSource,
        host: str,
        port: int,
        *,
        token: str | None = None,
        hosts: Iterable[str] = (),
    ) -> None:
        if not is_loopback(host) and not token:
            raise ValueError(
                f"the admin door on {host} needs a token: any client that reaches it can read the gate's state"
            )
        # uvicorn would otherwise report each malformed request of a port scan; real errors still come through.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self._address = (host, port)
        source = LocalSource(views) if isinstance(views, Views) else views
        self._live = source.feed
        config = uvicorn.Config(
            build_app(source, hosts=[*hosts, host], token=token),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            http=AdminConnection,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_GRACE_S,
        )
        self._server = _Guest(config)
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._server.server_state.connections)

    @property
    def port(self) -> int:
        """The port that is listened on, known from `bind` on."""
        assert self._socket is not None, "bind first"
        return int(self._socket.getsockname()[1])

    def bind(self) -> None:
        """Take the address now, serving later; raises OSError, the address as its file name, when that fails."""
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(self._address)
        except OSError as error:
            bound.close()
            raise OSError(error.errno, error.strerror, "{}:{}".format(*self._address)) from None
        self._socket = bound

    async def start(self) -> None:
        """Serve until `stop`; binds first if that has not been done. Raises OSError as `bind` does."""
        if self._socket is None:
            self.bind()
        assert self._socket is not None
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="admin door")
        await self._server.settled.wait()
        if not self._server.started:
            await self._task  # raises what kept it from starting

    async def stop(self) -> None:
        """Close the door and every connection within about a second; harmless when never started."""
        if self._live is not None:
            self._live.close()  # a stream that has no end would be waited for
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        elif self._socket is not None:
            self._socket.close()

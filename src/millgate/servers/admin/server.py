"""Serving the admin application inside a running loop: no signal handlers, no log lines, a clean end.

uvicorn is written to be the process; here it is a guest. It gets a socket that is already bound, so that a taken
port is an OSError before anything runs, and it never touches signals.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterable, Iterator

import uvicorn

from millgate.servers.admin.app import build_app
from millgate.servers.admin.connection import AdminConnection
from millgate.servers.admin.guard import is_loopback
from millgate.servers.admin.source import AdminSource, LocalSource
from millgate.servers.admin.views import Views

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

"""Serving the admin application on an address of its own.

Any client that reaches the door can connect; the token is asked for in a request. So before a request is whole nothing of it may
grow, and no number of connections may keep an operator out.
"""

import socket
from collections.abc import Iterable
from typing import Final

from millgate.http1.server import HttpServer, ServerLimits
from millgate.observe.live.feed import MOST_WATCHERS
from millgate.servers.admin.app import AdminApplication
from millgate.servers.admin.guard import is_loopback
from millgate.servers.admin.source import AdminSource, LocalSource, Views

MOST_CONNECTIONS: Final = MOST_WATCHERS + 64
"""All watchers, and beside them a scraper, a probe, a curious operator."""
MOST_HEAD_BYTES: Final = 32 * 1024
"""Four times as much as browsers send of cookies."""
MOST_BODY_BYTES: Final = 128 * 1024
"""Twice the longest that is read."""
REQUEST_WITHIN_S: Final = 10.0
"""As long as a head may take at the HTTP door."""
READ_WITHIN_S: Final = 30.0
"""As long as a client may read nothing at the HTTP door."""


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
        self._address = (host, port)
        source = LocalSource(views) if isinstance(views, Views) else views
        self._live = source.feed
        self._application = AdminApplication(source, hosts=[*hosts, host], token=token)
        self._server: HttpServer | None = None
        self._socket: socket.socket | None = None

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return 0 if self._server is None else self._server.connections

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
        limits = ServerLimits(
            header_bytes=MOST_HEAD_BYTES,
            body_bytes=MOST_BODY_BYTES,
            head_s=REQUEST_WITHIN_S,
            body_s=REQUEST_WITHIN_S,
            write_stall_s=READ_WITHIN_S,
            connections=MOST_CONNECTIONS,
            takes_nameless=True,
        )
        self._server = HttpServer(self._application, limits=limits, makes_room=True)
        await self._server.accept_on(self._socket)

    async def stop(self) -> None:
        """Close the door and every connection at once; harmless when never started."""
        if self._live is not None:
            self._live.close()
        if self._server is not None:
            await self._server.close()
            await self._application.ended()
        elif self._socket is not None:
            self._socket.close()

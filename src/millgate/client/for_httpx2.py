"""The transport for httpx2: hand a client from here to an SDK as its `http_client`.

openai.OpenAI(http_client=millgate.client.for_httpx2.client())
"""

from typing import Any, Final

import httpx2

from millgate.client.over_httpx import (
    CONNECT_WITHIN_S,
    MOST_CONNECTIONS,
    MOST_KEPT_CONNECTIONS,
    TIMEOUT_S,
    AsyncGateCalls,
    AsyncWatchedStream,
    GateCalls,
    HttpxFamily,
    WatchedStream,
)
from millgate.client.session import HostSettings

_LIMITS: Final = httpx2.Limits(
    max_connections=MOST_CONNECTIONS, max_keepalive_connections=MOST_KEPT_CONNECTIONS
)
_TIMEOUT: Final = httpx2.Timeout(TIMEOUT_S, connect=CONNECT_WITHIN_S)


class _Stream(WatchedStream, httpx2.SyncByteStream):
    pass


class _AsyncStream(AsyncWatchedStream, httpx2.AsyncByteStream):
    pass


_FAMILY: Final = HttpxFamily(
    httpx2.Response, httpx2.RequestNotRead, httpx2.PoolTimeout, _Stream, _AsyncStream
)


class Httpx2GateTransport(GateCalls, httpx2.BaseTransport):
    """Sends every request with settings: see `millgate.client.call`. Wraps `inner`, by default a plain transport."""

    def __init__(
        self, inner: httpx2.BaseTransport | None = None, settings: HostSettings | None = None
    ) -> None:
        super().__init__(inner or httpx2.HTTPTransport(limits=_LIMITS), _FAMILY, settings)


class AsyncHttpx2GateTransport(AsyncGateCalls, httpx2.AsyncBaseTransport):
    """The same for asyncio."""

    def __init__(
        self, inner: httpx2.AsyncBaseTransport | None = None, settings: HostSettings | None = None
    ) -> None:
        super().__init__(inner or httpx2.AsyncHTTPTransport(limits=_LIMITS), _FAMILY, settings)


def client(settings: HostSettings | None = None, **more: Any) -> httpx2.Client:
    """Return a client with the transport; `more` goes to `httpx2.Client`."""
    more = {"timeout": _TIMEOUT, "follow_redirects": True, **more}
    return httpx2.Client(transport=Httpx2GateTransport(settings=settings), **more)


def async_client(settings: HostSettings | None = None, **more: Any) -> httpx2.AsyncClient:
    """Return an asynchronous client with the transport; `more` goes to `httpx2.AsyncClient`."""
    more = {"timeout": _TIMEOUT, "follow_redirects": True, **more}
    return httpx2.AsyncClient(transport=AsyncHttpx2GateTransport(settings=settings), **more)

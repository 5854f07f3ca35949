"""The transport for httpx: hand a client from here to an SDK as its `http_client`.

openai.OpenAI(http_client=millgate.client.for_httpx.client())
"""

from typing import Any, Final

import httpx

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

_LIMITS: Final = httpx.Limits(
    max_connections=MOST_CONNECTIONS, max_keepalive_connections=MOST_KEPT_CONNECTIONS
)
_TIMEOUT: Final = httpx.Timeout(TIMEOUT_S, connect=CONNECT_WITHIN_S)


class _Stream(WatchedStream, httpx.SyncByteStream):
    pass


class _AsyncStream(AsyncWatchedStream, httpx.AsyncByteStream):
    pass


_FAMILY: Final = HttpxFamily(httpx.Response, httpx.RequestNotRead, httpx.PoolTimeout, _Stream, _AsyncStream)


class GateTransport(GateCalls, httpx.BaseTransport):
    """Sends every request with settings: see `millgate.client.call`. Wraps `inner`, by default a plain transport."""

    def __init__(
        self, inner: httpx.BaseTransport | None = None, settings: HostSettings | None = None
    ) -> None:
        super().__init__(inner or httpx.HTTPTransport(limits=_LIMITS), _FAMILY, settings)


class AsyncGateTransport(AsyncGateCalls, httpx.AsyncBaseTransport):
    """The same for asyncio."""

    def __init__(
        self, inner: httpx.AsyncBaseTransport | None = None, settings: HostSettings | None = None
    ) -> None:
        super().__init__(inner or httpx.AsyncHTTPTransport(limits=_LIMITS), _FAMILY, settings)


def client(settings: HostSettings | None = None, **more: Any) -> httpx.Client:
    """Return a client with the transport; `more` goes to `httpx.Client`."""
    more = {"timeout": _TIMEOUT, "follow_redirects": True, **more}
    return httpx.Client(transport=GateTransport(settings=settings), **more)


def async_client(settings: HostSettings | None = None, **more: Any) -> httpx.AsyncClient:
    """Return an asynchronous client with the transport; `more` goes to `httpx.AsyncClient`."""
    more = {"timeout": _TIMEOUT, "follow_redirects": True, **more}
    return httpx.AsyncClient(transport=AsyncGateTransport(settings=settings), **more)

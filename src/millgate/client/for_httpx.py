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


class GateTransport(httpx.BaseTransport):
    """Sends every request with settings: see `millgate.client.call`. Wraps `inner`, by default a plain transport."""

    def __init__(
        self, inner: httpx.BaseTransport | None = None, settings: HostSettings | None = None
    ) -> None:
        self._inner = inner or httpx.HTTPTransport(limits=_LIMITS)
        self._calls = GateCalls(_FAMILY, settings)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send one call and return its last answer."""
        response: httpx.Response = self._calls.answer(request, self._inner.handle_request)
        return response

    def close(self) -> None:
        """Close the wrapped transport."""
        self._inner.close()


class AsyncGateTransport(httpx.AsyncBaseTransport):
    """The same for asyncio."""

    def __init__(
        self, inner: httpx.AsyncBaseTransport | None = None, settings: HostSettings | None = None
    ) -> None:
        self._inner = inner or httpx.AsyncHTTPTransport(limits=_LIMITS)
        self._calls = GateCalls(_FAMILY, settings)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one call and return its last answer."""
        send = self._inner.handle_async_request
        response: httpx.Response = await self._calls.answer_async(request, send)
        return response

    async def aclose(self) -> None:
        """Close the wrapped transport."""
        await self._inner.aclose()


def client(settings: HostSettings | None = None, **more: Any) -> httpx.Client:
    """Return a client with the transport; `more` goes to `httpx.Client`."""
    more = {"timeout": _TIMEOUT, "follow_redirects": True, **more}
    return httpx.Client(transport=GateTransport(settings=settings), **more)


def async_client(settings: HostSettings | None = None, **more: Any) -> httpx.AsyncClient:
    """Return an asynchronous client with the transport; `more` goes to `httpx.AsyncClient`."""
    more = {"timeout": _TIMEOUT, "follow_redirects": True, **more}
    return httpx.AsyncClient(transport=AsyncGateTransport(settings=settings), **more)

"""The transport for httpx: hand a client from here to an SDK as its `http_client`.

openai.OpenAI(http_client=millgate.client.for_httpx.client())
"""

from typing import Any, Final

import httpx

from millgate.client.session import HostSettings
from millgate.client.transport import LIMITS, TIMEOUT_S, AsyncCalls, SyncCalls, WatchedStream

_LIMITS: Final = httpx.Limits(**LIMITS)
_TIMEOUT: Final = httpx.Timeout(**TIMEOUT_S)


class _Stream(WatchedStream, httpx.SyncByteStream, httpx.AsyncByteStream):
    pass


class GateTransport(SyncCalls, httpx.BaseTransport):
    """Sends every request with settings: see `millgate.client.call`. Wraps `inner`, by default a plain transport."""

    def __init__(
        self, inner: httpx.BaseTransport | None = None, settings: HostSettings | None = None
    ) -> None:
        super().__init__(httpx, _Stream, inner or httpx.HTTPTransport(limits=_LIMITS), settings)


class AsyncGateTransport(AsyncCalls, httpx.AsyncBaseTransport):
    """The same for asyncio."""

    def __init__(
        self, inner: httpx.AsyncBaseTransport | None = None, settings: HostSettings | None = None
    ) -> None:
        super().__init__(httpx, _Stream, inner or httpx.AsyncHTTPTransport(limits=_LIMITS), settings)


def client(settings: HostSettings | None = None, **more: Any) -> httpx.Client:
    """Return a client with the transport; `more` goes to `httpx.Client`."""
    more = {"timeout": _TIMEOUT, "follow_redirects": True, **more}
    return httpx.Client(transport=GateTransport(settings=settings), **more)


def async_client(settings: HostSettings | None = None, **more: Any) -> httpx.AsyncClient:
    """Return an asynchronous client with the transport; `more` goes to `httpx.AsyncClient`."""
    more = {"timeout": _TIMEOUT, "follow_redirects": True, **more}
    return httpx.AsyncClient(transport=AsyncGateTransport(settings=settings), **more)

"""The transport for httpx: hand a client from here to an SDK as its `http_client`.

openai.OpenAI(http_client=millgate.client.for_httpx.client())
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import httpx

from millgate.client.over_httpx import (
    AsyncGateCalls,
    AsyncWatchedStream,
    GateCalls,
    HttpxFamily,
    WatchedStream,
    dressed,
    usual,
)
from millgate.client.session import HostSettings

_USUAL: Final = usual(httpx)
_USUAL_INNER: Final = partial(httpx.HTTPTransport, limits=_USUAL["limits"])
_USUAL_ASYNC_INNER: Final = partial(httpx.AsyncHTTPTransport, limits=_USUAL["limits"])


class _Stream(WatchedStream, httpx.SyncByteStream):
    pass


class _AsyncStream(AsyncWatchedStream, httpx.AsyncByteStream):
    pass


_FAMILY: Final = HttpxFamily(httpx, _Stream, _AsyncStream)


class GateTransport(GateCalls, httpx.BaseTransport):
    """Sends every request with settings: see `millgate.client.call`. Wraps `inner`, by default a plain transport."""

    def __init__(
        self,
        inner: httpx.BaseTransport | None = None,
        settings: HostSettings | None = None,
        usual_inner: Callable[[], httpx.BaseTransport] = _USUAL_INNER,
    ) -> None:
        super().__init__(inner, usual_inner, _FAMILY, settings)


class AsyncGateTransport(AsyncGateCalls, httpx.AsyncBaseTransport):
    """The same for asyncio."""

    def __init__(
        self,
        inner: httpx.AsyncBaseTransport | None = None,
        settings: HostSettings | None = None,
        usual_inner: Callable[[], httpx.AsyncBaseTransport] = _USUAL_ASYNC_INNER,
    ) -> None:
        super().__init__(inner, usual_inner, _FAMILY, settings)


def client(settings: HostSettings | None = None, **more: Any) -> httpx.Client:
    """Return a client with the transport; `more` is what `httpx.Client` takes."""
    return httpx.Client(**dressed(GateTransport, httpx.HTTPTransport, _USUAL | more, settings))


def async_client(settings: HostSettings | None = None, **more: Any) -> httpx.AsyncClient:
    """Return an asynchronous client with the transport; `more` is what `httpx.AsyncClient` takes."""
    return httpx.AsyncClient(**dressed(AsyncGateTransport, httpx.AsyncHTTPTransport, _USUAL | more, settings))

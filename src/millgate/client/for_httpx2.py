"""The transport for httpx2: hand a client from here to an SDK as its `http_client`.

openai.OpenAI(http_client=millgate.client.for_httpx2.client())
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import httpx2

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

_USUAL: Final = usual(httpx2)
_USUAL_INNER: Final = partial(httpx2.HTTPTransport, limits=_USUAL["limits"])
_USUAL_ASYNC_INNER: Final = partial(httpx2.AsyncHTTPTransport, limits=_USUAL["limits"])


class _Stream(WatchedStream, httpx2.SyncByteStream):
    pass


class _AsyncStream(AsyncWatchedStream, httpx2.AsyncByteStream):
    pass


_FAMILY: Final = HttpxFamily(httpx2, _Stream, _AsyncStream)


class Httpx2GateTransport(GateCalls, httpx2.BaseTransport):
    """Sends every request with settings: see `millgate.client.call`. Wraps `inner`, by default a plain transport."""

    def __init__(
        self,
        inner: httpx2.BaseTransport | None = None,
        settings: HostSettings | None = None,
        usual_inner: Callable[[], httpx2.BaseTransport] = _USUAL_INNER,
    ) -> None:
        super().__init__(inner, usual_inner, _FAMILY, settings)


class AsyncHttpx2GateTransport(AsyncGateCalls, httpx2.AsyncBaseTransport):
    """The same for asyncio."""

    def __init__(
        self,
        inner: httpx2.AsyncBaseTransport | None = None,
        settings: HostSettings | None = None,
        usual_inner: Callable[[], httpx2.AsyncBaseTransport] = _USUAL_ASYNC_INNER,
    ) -> None:
        super().__init__(inner, usual_inner, _FAMILY, settings)


def client(settings: HostSettings | None = None, **more: Any) -> httpx2.Client:
    """Return a client with the transport; `more` is what `httpx2.Client` takes."""
    return httpx2.Client(**dressed(Httpx2GateTransport, httpx2.HTTPTransport, _USUAL | more, settings))


def async_client(settings: HostSettings | None = None, **more: Any) -> httpx2.AsyncClient:
    """Return an asynchronous client with the transport; `more` is what `httpx2.AsyncClient` takes."""
    return httpx2.AsyncClient(
        **dressed(AsyncHttpx2GateTransport, httpx2.AsyncHTTPTransport, _USUAL | more, settings)
    )

"""The transport for httpx2: hand a client from here to an SDK as its `http_client`.

openai.OpenAI(http_client=millgate.client.for_httpx2.client())
"""

from typing import Any

import httpx2

from millgate.client.over_httpx import AsyncGateCalls, AsyncWatchedStream, GateCalls, WatchedStream
from millgate.client.session import HostSettings


class _Stream(WatchedStream, httpx2.SyncByteStream):
    pass


class _AsyncStream(AsyncWatchedStream, httpx2.AsyncByteStream):
    pass


class Httpx2GateTransport(GateCalls[httpx2.BaseTransport], httpx2.BaseTransport):
    """Sends every request with settings: see `millgate.client.call`. Wraps `inner`, by default a plain transport."""

    library = httpx2
    watch = _Stream


class AsyncHttpx2GateTransport(AsyncGateCalls[httpx2.AsyncBaseTransport], httpx2.AsyncBaseTransport):
    """The same for asyncio."""

    library = httpx2
    watch = _AsyncStream


def client(settings: HostSettings | None = None, **more: Any) -> httpx2.Client:
    """Return a client with the transport; `more` is what `httpx2.Client` takes."""
    return httpx2.Client(**Httpx2GateTransport.dressed(settings, more))


def async_client(settings: HostSettings | None = None, **more: Any) -> httpx2.AsyncClient:
    """Return an asynchronous client with the transport; `more` is what `httpx2.AsyncClient` takes."""
    return httpx2.AsyncClient(**AsyncHttpx2GateTransport.dressed(settings, more))

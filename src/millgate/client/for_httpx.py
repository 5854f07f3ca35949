"""The transport for httpx: hand a client from here to an SDK as its `http_client`.

openai.OpenAI(http_client=millgate.client.for_httpx.client())
"""

from typing import Any

import httpx

from millgate.client.over_httpx import AsyncGateCalls, AsyncWatchedStream, GateCalls, WatchedStream
from millgate.client.session import HostSettings


class _Stream(WatchedStream, httpx.SyncByteStream):
    pass


class _AsyncStream(AsyncWatchedStream, httpx.AsyncByteStream):
    pass


class GateTransport(GateCalls[httpx.BaseTransport], httpx.BaseTransport):
    """Sends every request with settings: see `millgate.client.call`. Wraps `inner`, by default a plain transport."""

    library = httpx
    watch = _Stream


class AsyncGateTransport(AsyncGateCalls[httpx.AsyncBaseTransport], httpx.AsyncBaseTransport):
    """The same for asyncio."""

    library = httpx
    watch = _AsyncStream


def client(settings: HostSettings | None = None, **more: Any) -> httpx.Client:
    """Return a client with the transport; `more` is what `httpx.Client` takes."""
    return httpx.Client(**GateTransport.dressed(settings, more))


def async_client(settings: HostSettings | None = None, **more: Any) -> httpx.AsyncClient:
    """Return an asynchronous client with the transport; `more` is what `httpx.AsyncClient` takes."""
    return httpx.AsyncClient(**AsyncGateTransport.dressed(settings, more))

"""The transport for httpx: hand a client from here to an SDK as its `http_client`.

openai.OpenAI(http_client=millgate.client.for_httpx.client())
"""

from typing import Any

import httpx

from millgate.client.over_httpx import client_fields, transports
from millgate.client.session import HostSettings

GateTransport, AsyncGateTransport = transports(httpx)


def client(settings: HostSettings | None = None, **more: Any) -> httpx.Client:
    """Return a client with the transport; `more` goes to `httpx.Client`."""
    return httpx.Client(transport=GateTransport(settings=settings), **client_fields(httpx, more))


def async_client(settings: HostSettings | None = None, **more: Any) -> httpx.AsyncClient:
    """Return an asynchronous client with the transport; `more` goes to `httpx.AsyncClient`."""
    return httpx.AsyncClient(transport=AsyncGateTransport(settings=settings), **client_fields(httpx, more))

"""The transport for httpx2: hand a client from here to an SDK as its `http_client`.

openai.OpenAI(http_client=millgate.client.for_httpx2.client())
"""

from typing import Any

import httpx2

from millgate.client.over_httpx import client_fields, transports
from millgate.client.session import HostSettings

GateTransport, AsyncGateTransport = transports(httpx2)


def client(settings: HostSettings | None = None, **more: Any) -> httpx2.Client:
    """Return a client with the transport; `more` goes to `httpx2.Client`."""
    return httpx2.Client(transport=GateTransport(settings=settings), **client_fields(httpx2, more))


def async_client(settings: HostSettings | None = None, **more: Any) -> httpx2.AsyncClient:
    """Return an asynchronous client with the transport; `more` goes to `httpx2.AsyncClient`."""
    return httpx2.AsyncClient(transport=AsyncGateTransport(settings=settings), **client_fields(httpx2, more))

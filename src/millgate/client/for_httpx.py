"""The transport for httpx: hand a client from here to an SDK as its `http_client`.

openai.OpenAI(http_client=millgate.client.for_httpx.client())
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import httpx

from millgate.client.call import Leaving
from millgate.client.session import HostSettings
from millgate.client.transport import (
    SPENT_BODY,
    SPENT_HEADERS,
    SPENT_STATUS,
    ConversationEnding,
    HostSessions,
    carry,
    carry_async,
)

_LIMITS: Final = httpx.Limits(max_connections=1000, max_keepalive_connections=100)
"""As the SDKs' own clients: the window is what binds."""
_TIMEOUT: Final = httpx.Timeout(600.0, connect=5.0)
"""As the SDKs' own; a call's `timeout=` goes before it."""


class GateTransport(httpx.BaseTransport):
    """Sends every request with settings: see `millgate.client.call`. Wraps `inner`, by default a plain transport."""

    def __init__(
        self, inner: httpx.BaseTransport | None = None, settings: HostSettings | None = None
    ) -> None:
        self._inner = inner or httpx.HTTPTransport(limits=_LIMITS)
        self._sessions = HostSessions(settings)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send one call and return its last answer."""
        ending = carry(
            self._sessions.of(request.url), request, _body(request), self._inner.handle_request, _close
        )
        response = _answered(ending)
        assert isinstance(response.stream, httpx.SyncByteStream)
        response.stream = _Stream(response.stream, ending.leaving)
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
        self._sessions = HostSessions(settings)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one call and return its last answer."""
        ending = await carry_async(
            self._sessions.of(request.url), request, _body(request), self._inner.handle_async_request, _aclose
        )
        response = _answered(ending)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _AsyncStream(response.stream, ending.leaving)
        return response

    async def aclose(self) -> None:
        """Close the wrapped transport."""
        await self._inner.aclose()


def client(settings: HostSettings | None = None, **more: Any) -> httpx.Client:
    """Return a client with the transport; `more` goes to `httpx.Client`."""
    more.setdefault("timeout", _TIMEOUT)
    more.setdefault("follow_redirects", True)
    return httpx.Client(transport=GateTransport(settings=settings), **more)


def async_client(settings: HostSettings | None = None, **more: Any) -> httpx.AsyncClient:
    """Return an asynchronous client with the transport; `more` goes to `httpx.AsyncClient`."""
    more.setdefault("timeout", _TIMEOUT)
    more.setdefault("follow_redirects", True)
    return httpx.AsyncClient(transport=AsyncGateTransport(settings=settings), **more)


class _Stream(httpx.SyncByteStream):
    """A body that says when it is over, by its end, its close, or at the latest when no reference to it is left."""

    def __init__(self, inner: httpx.SyncByteStream, leaving: Leaving | None) -> None:
        self._inner = inner
        self._leaving = leaving

    def __iter__(self) -> Iterator[bytes]:
        yield from self._inner

    def close(self) -> None:
        try:
            self._inner.close()
        finally:
            if self._leaving is not None:
                self._leaving.now()

    def __del__(self) -> None:
        if self._leaving is not None:
            self._leaving.lost()


class _AsyncStream(httpx.AsyncByteStream):
    """The same for asyncio."""

    def __init__(self, inner: httpx.AsyncByteStream, leaving: Leaving | None) -> None:
        self._inner = inner
        self._leaving = leaving

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._inner:
            yield piece

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            if self._leaving is not None:
                self._leaving.now()

    def __del__(self) -> None:
        if self._leaving is not None:
            self._leaving.lost()


def _answered(ending: ConversationEnding) -> httpx.Response:
    if ending.response is None:
        return httpx.Response(SPENT_STATUS, headers=SPENT_HEADERS, content=SPENT_BODY)
    response: httpx.Response = ending.response
    return response


def _body(request: httpx.Request) -> bytes | None:
    """Return the body if it can be sent again, None for one that is read as it is sent."""
    try:
        return request.content
    except httpx.RequestNotRead:
        return None


def _close(response: httpx.Response) -> None:
    response.close()


async def _aclose(response: httpx.Response) -> None:
    await response.aclose()

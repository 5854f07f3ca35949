"""What the transports for httpx and httpx2 share: the two libraries have the same classes, each its own."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, ClassVar, Final, Generic, TypeVar

from millgate.client.call import Leaving
from millgate.client.session import HostSession, HostSettings
from millgate.client.transport import (
    SPENT_BODY,
    SPENT_HEADERS,
    SPENT_STATUS,
    HostSessions,
    carry,
    carry_async,
)

Inner = TypeVar("Inner")
_OF_TRANSPORTS: Final = frozenset({"verify", "cert", "trust_env", "http1", "http2", "limits"})


class _WatchedBody:
    """A body that says when it is over, by its end, its close, or at the latest when no reference to it is left."""

    def __init__(self, inner: Any, leaving: Leaving) -> None:
        self._inner = inner
        self._leaving = leaving

    def __del__(self) -> None:
        self._leaving.lost()


class WatchedStream(_WatchedBody):
    """A body that is read from threads."""

    def __iter__(self) -> Iterator[bytes]:
        try:
            self._leaving.reads()
            for piece in self._inner:
                self._leaving.rests()
                yield piece
                self._leaving.reads()
        finally:
            self._leaving.rests()

    def close(self) -> None:
        """Close the body; it is over then."""
        try:
            self._inner.close()
        finally:
            self._leaving.now()


class AsyncWatchedStream(_WatchedBody):
    """The same for asyncio."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            self._leaving.reads()
            async for piece in self._inner:
                self._leaving.rests()
                yield piece
                self._leaving.reads()
        finally:
            self._leaving.rests()

    async def aclose(self) -> None:
        """Close the body; it is over then."""
        try:
            await self._inner.aclose()
        finally:
            self._leaving.now()


def _usual(library: Any) -> dict[str, Any]:
    """Return a client's arguments as the SDKs' own clients have them: the window is what binds, and a call's `timeout=` goes before this one."""
    limits = library.Limits(max_connections=1000, max_keepalive_connections=100)
    return {"timeout": library.Timeout(600.0, connect=5.0), "limits": limits, "follow_redirects": True}


class _GateCalls(Generic[Inner]):
    """Leads the calls of one transport of this family to their last answers: see `millgate.client.call`.

    They are sent by `inner`, or by what `usual_inner` makes for each process: one that was forked and used its
    parent's connections would read answers that are another process's.
    """

    library: Any
    plain: ClassVar[str]
    """The name of the library's own transport."""
    watch: ClassVar[type[_WatchedBody]]
    """Makes what watches a body."""

    def __init__(
        self,
        inner: Inner | None = None,
        settings: HostSettings | None = None,
        usual_inner: Callable[[], Inner] | None = None,
    ) -> None:
        library = self.library
        usual_inner = usual_inner or partial(getattr(library, self.plain), limits=_usual(library)["limits"])
        self._make = usual_inner if inner is None else lambda: inner
        self._inners = {os.getpid(): self._make()}
        self._closings = 0
        self._unreached = (library.ConnectError, library.ConnectTimeout)
        self.sessions = HostSessions(settings)

    @classmethod
    def dressed(cls, settings: HostSettings | None, more: dict[str, Any]) -> dict[str, Any]:
        """Return a client's arguments with our transport around the plain one, or `transport`; beside it a client drops some, and asks a proxy past it."""
        more = _usual(cls.library) | more
        proxy, inner = more.pop("proxy", None), more.pop("transport", None)
        kept = {name: more[name] for name in more.keys() & _OF_TRANSPORTS}
        usual_inner = partial(getattr(cls.library, cls.plain), proxy=proxy, **kept)
        return {**more, "transport": cls(inner, settings, usual_inner)}

    @property
    def _inner(self) -> Any:
        process = os.getpid()
        return self._inners.get(process) or self._inners.setdefault(process, self._make())

    def _refuse_closed(self, closings: int) -> None:
        """Raise for a call that the client's closing found in line; sent now, it would open connections anew."""
        if closings != self._closings:
            raise self.library.ConnectError("the client was closed while the call stood in line")

    @staticmethod
    def _heard(session: HostSession, response: Any) -> Any:
        if response.headers.get("x-millgate-reason") == "draining":
            session.missed(drains=True)
        else:
            session.reached()
        return response

    def _watched(self, last: Any, leaving: Leaving | None) -> Any:
        response = last or self.library.Response(SPENT_STATUS, headers=SPENT_HEADERS, content=SPENT_BODY)
        if leaving is not None:
            if response.is_closed:
                leaving.now()  # read whole by a transport of the caller's own: no client closes it again
            response.stream = self.watch(response.stream, leaving)
        return response

    def _body(self, request: Any) -> bytes | None:
        """Return the body if it can be sent again, None for one that is read as it is sent."""
        try:
            body: bytes = request.content
        except self.library.RequestNotRead:
            return None
        return body


class GateCalls(_GateCalls[Inner]):
    """The calls of threads."""

    plain = "HTTPTransport"

    def handle_request(self, request: Any) -> Any:
        """Send one call and return its last answer, with a watched body."""
        session, late = self.sessions.of(request.url), self.library.PoolTimeout
        send = partial(self._send, session, self._closings)
        ending = carry(session, request, self._body(request), send, late)
        return self._watched(*ending)

    def _send(self, session: HostSession, closings: int, request: Any) -> Any:
        self._refuse_closed(closings)
        try:
            return self._heard(session, self._inner.handle_request(request))
        except self._unreached:
            session.missed()
            raise

    def close(self) -> None:
        """Close the wrapped transport; calls that stand in line end with a ConnectError."""
        self._closings += 1
        self._inner.close()


class AsyncGateCalls(_GateCalls[Inner]):
    """The calls of asyncio."""

    plain = "AsyncHTTPTransport"

    async def handle_async_request(self, request: Any) -> Any:
        """Send one call and return its last answer, with a watched body."""
        session, late = self.sessions.of(request.url), self.library.PoolTimeout
        send = partial(self._send, session, self._closings)
        ending = await carry_async(session, request, self._body(request), send, late)
        return self._watched(*ending)

    async def _send(self, session: HostSession, closings: int, request: Any) -> Any:
        self._refuse_closed(closings)
        try:
            return self._heard(session, await self._inner.handle_async_request(request))
        except self._unreached:
            session.missed()
            raise

    async def aclose(self) -> None:
        """Close the wrapped transport; calls that stand in line end with a ConnectError."""
        self._closings += 1
        await self._inner.aclose()

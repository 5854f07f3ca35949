"""What the transports for httpx and httpx2 share: the two libraries have the same classes, each its own.

A conversation (`millgate.client.call`) is carried out once with threads and once with asyncio.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

from millgate.client.call import (
    Asked,
    Conversation,
    Discard,
    Final_,
    Leaving,
    ResponseHead,
    SendRequest,
    Sleep,
    Step,
    converse,
)
from millgate.client.session import HostSession, HostSettings, Turn, session_of

LIMITS = {"max_connections": 1000, "max_keepalive_connections": 100}
"""As the SDKs' own clients: the window is what binds."""
TIMEOUT_S = {"timeout": 600.0, "connect": 5.0}
"""As the SDKs' own; a call's `timeout=` goes before it."""

# A refusal made here, in the words of the OpenAI dialect; every SDK reads the status and `x-should-retry`.
SPENT_STATUS = 503
SPENT_HEADERS = {
    "content-type": "application/json",
    "x-should-retry": "false",
    "x-millgate-reason": "retry_budget",
}
SPENT_BODY = (
    b'{"error":{"message":"too large a share of this process\'s calls are retries; this one was not sent",'
    b'"type":"service_unavailable_error","param":null,"code":"slow_down"}}'
)


class WatchedStream:
    """A body that says when it is over, by its end, its close, or at the latest when no reference to it is left."""

    def __init__(self, inner: Any, leaving: Leaving | None) -> None:
        self._inner = inner
        self._leaving = leaving

    def __iter__(self) -> Iterator[bytes]:
        yield from self._inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._inner:
            yield piece

    def close(self) -> None:
        """Close the body; it is over then."""
        try:
            self._inner.close()
        finally:
            self._left()

    async def aclose(self) -> None:
        """Close the body; it is over then."""
        try:
            await self._inner.aclose()
        finally:
            self._left()

    def _left(self) -> None:
        if self._leaving is not None:
            self._leaving.now()

    def __del__(self) -> None:
        if self._leaving is not None:
            self._leaving.lost()


class HostSessions:
    """The sessions that one transport has used, which keeps them alive."""

    def __init__(self, settings: HostSettings | None) -> None:
        self._settings = settings or HostSettings()
        self._known: dict[tuple[str, str, int | None], HostSession] = {}

    def of(self, url: Any) -> HostSession:
        """Return the session of this address."""
        key = (url.scheme, url.host, url.port)
        session = self._known.get(key)
        if session is None:
            session = self._known[key] = session_of(*key, self._settings)
        return session


class _Calls:
    """Leads the calls of one transport over `inner` to their last answers, with the classes of its `library`.

    `watched` makes a body of that library which says when it is over.
    """

    def __init__(
        self,
        library: Any,
        watched: Callable[[Any, Leaving | None], Any],
        inner: Any,
        settings: HostSettings | None,
    ) -> None:
        self._library = library
        self._watched = watched
        self._inner = inner
        self.sessions = HostSessions(settings)

    def _asked(self, request: Any) -> Asked:
        """Read what a conversation needs to know; the time allowed is the read timeout, as the SDKs mean it.

        A body that is read as it is sent cannot be sent again.
        """
        allowed_s = (request.extensions.get("timeout") or {}).get("read")
        try:
            return Asked(request.content, True, dict(request.headers), allowed_s)
        except self._library.RequestNotRead:
            return Asked(b"", False, dict(request.headers), allowed_s)

    def _answer(self, final: Final_, response: Any) -> Any:
        """Return the last answer with a watched body; where the retry budget is used up, one that is made here."""
        if not final.answered:
            response = self._library.Response(SPENT_STATUS, headers=SPENT_HEADERS, content=SPENT_BODY)
        elif final.quiet:
            response.headers["x-should-retry"] = "false"
        response.stream = self._watched(response.stream, final.leaving)
        return response


class SyncCalls(_Calls):
    """A transport's calls with threads."""

    def handle_request(self, request: Any) -> Any:
        """Send one call and return its last answer."""
        session, told = self.sessions.of(request.url), threading.Event()
        conversation = converse(session, self._asked(request), told.set, time.monotonic)
        response, heard = None, None
        try:
            while not isinstance(step := _next(conversation, heard), Final_):
                heard = None
                if isinstance(step, SendRequest):
                    request.headers.update(step.headers)
                    response = self._inner.handle_request(request)
                    heard = ResponseHead(response.status_code, response.headers)
                elif isinstance(step, Discard):
                    assert response is not None
                    response.close()
                elif isinstance(step, Sleep):
                    time.sleep(step.seconds)
                else:
                    _stand(session, step.turn, told)
        finally:
            conversation.close()
        return self._answer(step, response)

    def close(self) -> None:
        """Close the wrapped transport."""
        self._inner.close()


class AsyncCalls(_Calls):
    """The same for asyncio."""

    async def handle_async_request(self, request: Any) -> Any:
        """Send one call and return its last answer."""
        session, told, loop = self.sessions.of(request.url), asyncio.Event(), asyncio.get_running_loop()
        wake = partial(loop.call_soon_threadsafe, told.set)
        conversation = converse(session, self._asked(request), wake, time.monotonic)
        response, heard = None, None
        try:
            while not isinstance(step := _next(conversation, heard), Final_):
                heard = None
                if isinstance(step, SendRequest):
                    request.headers.update(step.headers)
                    response = await self._inner.handle_async_request(request)
                    heard = ResponseHead(response.status_code, response.headers)
                elif isinstance(step, Discard):
                    assert response is not None
                    await response.aclose()
                elif isinstance(step, Sleep):
                    await asyncio.sleep(step.seconds)
                else:
                    await _stand_async(session, step.turn, told)
        finally:
            conversation.close()
        return self._answer(step, response)

    async def aclose(self) -> None:
        """Close the wrapped transport."""
        await self._inner.aclose()


def _next(conversation: Conversation, heard: ResponseHead | None) -> Step | Final_:
    """Return the next step or the end: StopIteration must not leave a coroutine."""
    try:
        return conversation.send(heard)
    except StopIteration as stop:
        final: Final_ = stop.value
        return final


def _stand(session: HostSession, turn: Turn, told: threading.Event) -> None:
    while not turn.sent:
        told.wait(session.look(turn))
        told.clear()


async def _stand_async(session: HostSession, turn: Turn, told: asyncio.Event) -> None:
    while not turn.sent:
        try:
            async with asyncio.timeout(session.look(turn)):
                await told.wait()
        except TimeoutError:
            continue
        told.clear()

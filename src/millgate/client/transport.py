"""Carrying out a conversation: once with threads, once with asyncio, for any library's requests and answers."""

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
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
    StandInLine,
    Step,
    converse,
)
from millgate.client.session import HostKey, HostSession, HostSettings, session_of

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


# The last answer (None: the caller makes one up), and what is told when its body is over.
ConversationEnding = tuple[Any, Leaving | None]


class HostSessions:
    """The sessions that one transport has used, which keeps them alive."""

    def __init__(self, settings: HostSettings | None) -> None:
        self._settings = settings or HostSettings()
        self._known: dict[HostKey, HostSession] = {}

    def of(self, url: Any) -> HostSession:
        """Return the session of this address."""
        key = (os.getpid(), url.scheme, url.host, url.port)
        session = self._known.get(key)
        if session is None:
            session = self._known[key] = session_of(key, self._settings)
        return session


def carry(
    session: HostSession, request: Any, body: bytes | None, send: Callable[[Any], Any], late: type[Exception]
) -> ConversationEnding:
    """Lead one synchronous call to its last answer; a wait in line that is too long is `late`."""
    told = threading.Event()
    conversation = converse(session, _asked(request, body), told.set, time.monotonic)
    response: Any = None
    heard: ResponseHead | None = None
    try:
        while True:
            step, heard = conversation.send(heard), None
            if isinstance(step, SendRequest):
                response = send(_dressed(request, step.headers))
                heard = ResponseHead(response.status_code, response.headers)
            elif isinstance(step, Discard):
                response.close()
            elif isinstance(step, Sleep):
                time.sleep(step.seconds)
            else:
                _stand(session, step, told, late)
    except StopIteration as stop:
        return _ending(stop.value, response)
    finally:
        conversation.close()


async def carry_async(
    session: HostSession,
    request: Any,
    body: bytes | None,
    send: Callable[[Any], Awaitable[Any]],
    late: type[Exception],
) -> ConversationEnding:
    """Lead one asynchronous call to its last answer; a wait in line that is too long is `late`."""
    told, loop = asyncio.Event(), asyncio.get_running_loop()
    conversation = converse(
        session, _asked(request, body), lambda: loop.call_soon_threadsafe(told.set), time.monotonic
    )
    response: Any = None
    heard: ResponseHead | None = None
    try:
        while True:
            step, heard = _next(conversation, heard), None
            if isinstance(step, Final_):
                return _ending(step, response)
            if isinstance(step, SendRequest):
                response = await send(_dressed(request, step.headers))
                heard = ResponseHead(response.status_code, response.headers)
            elif isinstance(step, Discard):
                await response.aclose()
            elif isinstance(step, Sleep):
                await asyncio.sleep(step.seconds)
            else:
                await _stand_async(session, step, told, late)
    finally:
        conversation.close()


def _next(conversation: Conversation, heard: ResponseHead | None) -> Step | Final_:
    """Return the next step or the end: StopIteration must not leave a coroutine."""
    try:
        return conversation.send(heard)
    except StopIteration as stop:
        final: Final_ = stop.value
        return final


def _stand(session: HostSession, step: StandInLine, told: threading.Event, late: type[Exception]) -> None:
    began = time.monotonic()
    while not step.turn.sent:
        told.wait(_look_s(session, step, began, late))
        told.clear()


async def _stand_async(
    session: HostSession, step: StandInLine, told: asyncio.Event, late: type[Exception]
) -> None:
    began, loop = time.monotonic(), asyncio.get_running_loop()
    while not step.turn.sent:
        # A plain timer: in Python 3.11.2 the time-out of a task that was ever cancelled ends as a cancellation.
        timer = loop.call_later(_look_s(session, step, began, late), told.set)
        try:
            await told.wait()
        finally:
            timer.cancel()
        told.clear()


def _look_s(session: HostSession, step: StandInLine, began: float, late: type[Exception]) -> float:
    """Return how long to wait before looking again; raises `late` when the wait is over."""
    look_s = session.look(step.turn)
    if step.within_s is None or step.turn.sent:
        return look_s
    left_s = began + step.within_s - time.monotonic()
    if left_s <= 0:
        raise late(
            f"no turn within {step.within_s:g} s: calls in flight or `limits` leave no room, or the host takes no connections"
        )
    return min(look_s, left_s)


def _ending(final: Final_, response: Any) -> ConversationEnding:
    if not final.answered:
        return None, None
    if final.quiet:
        response.headers["x-should-retry"] = "false"
    return response, final.leaving


def _asked(request: Any, body: bytes | None) -> Asked:
    """Read what a conversation needs to know; the time allowed is the read timeout, as the SDKs mean it.

    The pool timeout is for a place among the connections, so it bounds the wait in line.
    """
    timeout: Mapping[str, float | None] = request.extensions.get("timeout") or {}
    return Asked(
        body or b"", body is not None, dict(request.headers), timeout.get("read"), timeout.get("pool")
    )


def _dressed(request: Any, headers: Mapping[str, str]) -> Any:
    for name, value in headers.items():
        request.headers[name] = value
    return request

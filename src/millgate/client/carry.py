"""Carrying out a conversation: once with threads, once with asyncio, for any library's requests and answers."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, NamedTuple, Protocol, TypeVar

from millgate.client.call import (
    Asked,
    Conversation,
    Discard,
    Final_,
    Head,
    Leaving,
    Send,
    Sleep,
    Step,
    converse,
)
from millgate.client.home import Home, Manners, Turn, home_of


class Address(Protocol):
    """What is read of a URL."""

    @property
    def scheme(self) -> str:
        """Http or https."""

    @property
    def host(self) -> str:
        """The host's name."""

    @property
    def port(self) -> int | None:
        """The port, None for the scheme's own."""


class Request(Protocol):
    """What is read and written of a request; both libraries' requests are this."""

    headers: Any
    extensions: Any

    @property
    def url(self) -> Address:
        """Where it goes."""


class Response(Protocol):
    """What is read of an answer."""

    status_code: int

    @property
    def headers(self) -> MutableMapping[str, str]:
        """Its headers, looked up without case."""


RequestT = TypeVar("RequestT", bound=Request)
ResponseT = TypeVar("ResponseT", bound=Response)

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


class Ending(NamedTuple):
    """The last answer (None: one has to be made up), and what to do when its body is over."""

    response: Any
    leaving: Leaving | None


class Homes:
    """The homes that one transport has used, which keeps them alive."""

    def __init__(self, manners: Manners | None) -> None:
        self._manners = manners or Manners()
        self._known: dict[tuple[str, str, int | None], Home] = {}

    def of(self, url: Address) -> Home:
        """Return the home of this address."""
        key = (url.scheme, url.host, url.port)
        home = self._known.get(key)
        if home is None:
            home = self._known[key] = home_of(*key, self._manners)
        return home


def carry(
    home: Home,
    request: RequestT,
    body: bytes | None,
    send: Callable[[RequestT], ResponseT],
    close: Callable[[ResponseT], None],
) -> Ending:
    """Lead one synchronous call to its last answer."""
    told = threading.Event()
    conversation = converse(home, _asked(request, body), told.set, time.monotonic)
    response: ResponseT | None = None
    heard: Head | None = None
    try:
        while True:
            step = conversation.send(heard)
            heard = None
            if isinstance(step, Send):
                response = send(_dressed(request, step.headers))
                heard = Head(response.status_code, response.headers)
            elif isinstance(step, Discard):
                assert response is not None
                close(response)
            elif isinstance(step, Sleep):
                time.sleep(step.seconds)
            else:
                _stand(home, step.turn, told)
    except StopIteration as stop:
        return _ending(stop.value, response)
    finally:
        conversation.close()


async def carry_async(
    home: Home,
    request: RequestT,
    body: bytes | None,
    send: Callable[[RequestT], Awaitable[ResponseT]],
    close: Callable[[ResponseT], Awaitable[None]],
) -> Ending:
    """Lead one asynchronous call to its last answer."""
    told, loop = asyncio.Event(), asyncio.get_running_loop()
    conversation = converse(
        home, _asked(request, body), lambda: loop.call_soon_threadsafe(told.set), time.monotonic
    )
    response: ResponseT | None = None
    heard: Head | None = None
    try:
        while (step := _next(conversation, heard)) is not None:
            heard = None
            if isinstance(step, Final_):
                return _ending(step, response)
            if isinstance(step, Send):
                response = await send(_dressed(request, step.headers))
                heard = Head(response.status_code, response.headers)
            elif isinstance(step, Discard):
                assert response is not None
                await close(response)
            elif isinstance(step, Sleep):
                await asyncio.sleep(step.seconds)
            else:
                await _stand_async(home, step.turn, told)
        raise AssertionError("a conversation ends with an answer")
    finally:
        conversation.close()


def _next(conversation: Conversation, heard: Head | None) -> Step | Final_:
    """Return the next step or the end: StopIteration must not leave a coroutine."""
    try:
        return conversation.send(heard)
    except StopIteration as stop:
        final: Final_ = stop.value
        return final


def _stand(home: Home, turn: Turn, told: threading.Event) -> None:
    while not turn.sent:
        told.wait(home.look(turn))
        told.clear()


async def _stand_async(home: Home, turn: Turn, told: asyncio.Event) -> None:
    while not turn.sent:
        try:
            async with asyncio.timeout(home.look(turn)):
                await told.wait()
        except TimeoutError:
            continue
        told.clear()


def _ending(final: Final_, response: Any) -> Ending:
    if not final.answered:
        return Ending(None, None)
    if final.quiet:
        response.headers["x-should-retry"] = "false"
    return Ending(response, final.leaving)


def _asked(request: Request, body: bytes | None) -> Asked:
    """Read what a conversation needs to know; the time allowed is the read timeout, as the SDKs mean it."""
    timeout: Mapping[str, float | None] = request.extensions.get("timeout") or {}
    return Asked(body or b"", body is not None, dict(request.headers), timeout.get("read"))


def _dressed(request: RequestT, headers: Mapping[str, str]) -> RequestT:
    for name, value in headers.items():
        request.headers[name] = value
    return request

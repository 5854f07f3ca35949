"""Signs of life to a client whose stream has not begun, for routes on which the operator wants them.

The first one sends the head of the answer. Status 200 is then settled, and a refusal or a failure that comes later
can only be an error event and a cut connection. That is why it is off by default (design section 6).
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from millgate.dialects.contract import UNREADABLE, Dialect
from millgate.http1.server.contract import Exchange, Headers, RequestHead
from millgate.http1.wire.fields import Lines
from millgate.servers.requests.fields import EVENT_STREAM, EVENTS, media_type

_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class KeptAlive:
    """An exchange that writes its dialect's keep-alive every `every_s` seconds until `heard()`, from now on.

    Implements `Exchange`, so that the responder need not know that the head has been sent.
    """

    def __init__(self, inner: Exchange, dialect: Dialect, request_id: bytes, every_s: float) -> None:
        self._inner = inner
        self._dialect = dialect
        self._request_id = request_id
        self._every_s = every_s
        self._heard: Callable[[], bool] | None = None
        self._early = False
        self._over = False
        self._timer: asyncio.TimerHandle | None = None

    def until(self, heard: Callable[[], bool]) -> None:
        """Begin; stop for good when `heard` returns True."""
        self._heard = heard
        self._arm()

    def adorn(self, lines: Lines) -> None:
        """Have these lines in the head of the answer."""
        self._inner.adorn(lines)

    def release(self) -> Exchange:
        """Stop, and return the exchange itself."""
        self._settle()
        return self._inner

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._every_s, self._breathe)

    def _breathe(self) -> None:
        if self._heard is None or self._over or self._inner.gone or self._heard():
            return
        if not self._inner.started:
            self._early = True
            ids = ((b"x-request-id", self._request_id), (b"request-id", self._request_id))
            self._inner.start(200, (*EVENTS, *ids))
        self._inner.write(self._dialect.keep_alive)
        self._arm()

    def _settle(self) -> None:
        """Give no sign of life any more: the answer is no stream, or over, and a comment has no place in it."""
        self._heard = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---- the exchange

    @property
    def head(self) -> RequestHead:
        """The request's head."""
        return self._inner.head

    @property
    def gone(self) -> bool:
        """Whether the client has left."""
        return self._inner.gone

    @property
    def started(self) -> bool:
        """Whether a head has been sent."""
        return self._inner.started

    def respond(self, status: int, headers: Headers | Lines, body: bytes, *, close: bool = False) -> None:
        """Send a whole answer, or what is left of it when status 200 has been sent: an error event and a cut."""
        self._settle()
        if self._early:
            self._fail(body)
        else:
            self._inner.respond(status, headers, body, close=close)

    def start(self, status: int, headers: Headers | Lines, *, length: int | None = None) -> None:
        """Send the head of a streamed answer, unless one has been sent that promises the same."""
        if not _is_event_stream(headers):
            self._settle()
        if not self._early:
            self._inner.start(status, headers, length=length)
        elif status != 200 or not _is_event_stream(headers):
            self._fail(b"")

    def write(self, data: bytes) -> None:
        """Send body bytes."""
        if not self._over:
            self._inner.write(data)

    def finish(self) -> None:
        """End the answer properly."""
        if not self._over:
            self._inner.finish()

    def abort(self) -> None:
        """Cut the connection."""
        self._settle()
        if not self._over:
            self._inner.abort()

    def release_body(self) -> None:
        """Give the body's bytes back to the budget."""
        self._inner.release_body()

    def _fail(self, body: bytes) -> None:
        """Say in an event what could not be said in a status; the words are the refusal's own."""
        self._over = True
        if not _is_error(body):
            message = "the engine's answer is not the stream that was asked for"
            body = self._dialect.error("api_error", "upstream_protocol_error", message)
        self._inner.write(self._dialect.as_event(body))
        self._inner.abort()


def _is_event_stream(headers: Headers | Lines) -> bool:
    if isinstance(headers, bytes):
        return headers.lower().find(EVENT_STREAM) >= 0
    return media_type(headers).startswith(EVENT_STREAM)


def _is_error(body: bytes) -> bool:
    """Whether this is a JSON object with an `error` object in it, as all dialects write one."""
    try:
        error = _members.decode(body).get("error")
    except UNREADABLE:
        return False
    return error is not None and bytes(error).startswith(b"{")

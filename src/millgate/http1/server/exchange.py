"""One request's answer: the only object of the server that an application holds on to."""

from collections.abc import Callable
from typing import Any, Final

from millgate.http1.server.contract import Headers, RefusedRequest, RequestHead
from millgate.http1.server.intake import Intake
from millgate.http1.server.wire import ResponseHeads, Wire
from millgate.http1.wire.chunk_lines import as_chunk
from millgate.http1.wire.fields import ANSWER_RESERVED, Lines, header_lines

_BODILESS: Final = frozenset((204, 304))
_LAST_CHUNK: Final = b"0\r\n\r\n"


def _with(headers: Headers | Lines, extra: bytes) -> Lines:
    lines = headers if isinstance(headers, bytes) else header_lines(headers, ANSWER_RESERVED)
    return Lines(lines + extra)


def _misused() -> RuntimeError:
    return RuntimeError("an answer is respond once, or start, write, and finish or abort")


class ExchangeConnection:
    """The connection, as its exchange sees it. Compiled, a class is asked twice as fast as a protocol."""

    heads: ResponseHeads
    soon: Callable[[Callable[..., Any]], object]
    wire: Wire

    def closing_after(self, exchange: "HttpExchange") -> bool:
        """Tell whether this exchange's answer is the connection's last."""
        raise NotImplementedError

    def answered(self, exchange: "HttpExchange", close: bool) -> None:
        """Go on after a whole answer, or close."""

    def cut(self, exchange: "HttpExchange", last: bytes, *, framed: bool) -> None:
        """Break off an answer."""

    def release(self, exchange: "HttpExchange") -> None:
        """Give back what this exchange's body has reserved; again is harmless."""


class HttpExchange:
    """Implements `Exchange`: frames what the application writes, and never lets a cut answer look whole (INV-10)."""

    def __init__(self, connection: ExchangeConnection, intake: Intake) -> None:
        self._connection = connection
        self.head: RequestHead = intake.head
        self.share = intake.share
        self.reserved_bytes = intake.reserved_bytes
        self.keep_alive = intake.keep_alive
        self.may_chunk = intake.may_chunk
        self.gone = False
        self.started = False
        self._over = False
        self._silent = self.head.method == b"HEAD"
        self._chunked = False
        self._size_left: int | None = None
        self._pending = self._extra = b""

    # ---- the application's side

    def adorn(self, lines: Lines) -> None:
        """Have these lines in the head of the answer, whatever it will be."""
        self._extra = lines

    def respond(self, status: int, headers: Headers | Lines, body: bytes, *, close: bool = False) -> None:
        """Send a whole answer in one write; `close` ends the connection after it."""
        if self.gone:
            return
        if self._over or self.started:
            raise _misused()
        if self._extra:
            headers = _with(headers, self._extra)
        connection = self._connection
        close = close or connection.closing_after(self)
        if status in _BODILESS:
            connection.wire.send(connection.heads.bodiless(status, headers, close=close))
        else:
            head = connection.heads.sized(status, headers, len(body), close)
            connection.wire.send(head if self._silent else head + body)
        self._over = True
        connection.answered(self, close)

    def start(self, status: int, headers: Headers | Lines, *, length: int | None = None) -> None:
        """Send the head of a streamed answer: sized when `length` is known, else chunked.

        The head leaves with the first `write` of the same loop iteration, or alone at its end.
        """
        if self.gone:
            return
        self._expect(started=False)
        if status in _BODILESS:
            raise ValueError(f"an answer of status {status} has no body: respond with it")
        if self._extra:
            headers = _with(headers, self._extra)
        heads = self._connection.heads
        close = self._connection.closing_after(self)
        if length is not None:
            self._pending = heads.sized(status, headers, length, close)
            self._size_left = length
        elif self.may_chunk:
            self._pending = heads.chunked(status, headers, close=close)
            self._chunked = not self._silent
        else:
            self._pending = heads.until_close(status, headers)
        self.started = True
        self._connection.soon(self._flush)

    def write(self, data: bytes) -> None:
        """Send body bytes of a started answer as they are."""
        if self._chunked and data and not self.gone and not self._over:  # the way of a streamed event
            if self._pending:
                pending, self._pending = self._pending, b""
                self._connection.wire.send(pending + as_chunk(data))
            else:
                self._connection.wire.send(as_chunk(data))
        elif data and not self.gone:
            self._expect(started=True)
            if not self._silent:
                self._write_unchunked(data)

    def finish(self) -> None:
        """End a started answer properly; the connection may be used again.

        A sized answer that is shorter than it said is cut instead.
        """
        if self.gone:
            return
        self._expect(started=True)
        if self._size_left and not self._silent:
            self.abort()
            return
        ending = _LAST_CHUNK if self._chunked else b""
        if self._pending or ending:
            self._connection.wire.send(self._pending + ending)
            self._pending = b""
        self._over = True
        self._connection.answered(self, self._connection.closing_after(self))

    def abort(self) -> None:
        """Cut the connection: a started answer that must not look finished (INV-10); nothing after its end.

        What was written before still leaves, if the client takes it: an error event may precede the cut.
        """
        if self.gone or self._over:
            return
        self._over = True
        framed = self.started and (self._chunked or self._size_left is not None)
        self._connection.cut(self, self._pending if framed else b"", framed=framed)

    def release_body(self) -> None:
        """Give the body's bytes back to the budget before the end."""
        self._connection.release(self)

    # ---- within

    def break_down(self, refusal: RefusedRequest) -> None:
        """End the answer that an application has failed to make: refused if nothing is sent, else cut."""
        if self.started:
            self.abort()
        elif not self.gone and not self._over:
            self._extra = b""  # a refusal has all of its fields
            self.respond(refusal.status, refusal.headers, refusal.body, close=True)

    def _expect(self, *, started: bool) -> None:
        if self._over or self.started != started:
            raise _misused()

    def _write_unchunked(self, data: bytes) -> None:
        if self._size_left is not None:
            if len(data) > self._size_left:
                self.abort()
                raise ValueError("more body bytes than the length that was announced")
            self._size_left -= len(data)
        pending, self._pending = self._pending, b""
        self._connection.wire.send(pending + data if pending else data)

    def _flush(self) -> None:
        if self._pending and not self.gone and not self._over:
            pending, self._pending = self._pending, b""
            self._connection.wire.send(pending)

"""The face of the HTTP/1.1 server: what it hands to an application and what the application may call.

The server knows framing, caps and deadlines and no gate; the gateway's door and the embedded engine are two
applications of it. Every call is synchronous and on the loop's thread; nothing here is awaited.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from millgate.http1.client.repeats import Notes
from millgate.http1.wire.fields import Lines

KIB: Final = 1024
MIB: Final = 1024 * KIB
Headers = Sequence[tuple[bytes, bytes]]
"""Pairs as they came, names lower-cased; the server has refused every pair with CR, LF or NUL in it."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What one client may ask of the server; bytes and seconds.

    `header_bytes` is OpenAI's own bound for clients (64 KiB of headers); `body_bytes` is Anthropic's (32 MB).
    `body_rate` adds a second to `body_s` for every so many bytes that have come, as Apache's MinRate does; a link
    of 128 kbit/s passes.
    `idle_s` is nginx's keepalive_timeout. `kept_pipelined_bytes` is read while a request is being answered;
    beyond it the connection is cut. Of a refused body `refused_bytes` are read: many clients send all of it before they read.
    `write_high_bytes` unsent bytes make a client slow, `write_low_bytes` make it quick again; `unsent_bytes` is TCP_NOTSENT_LOWAT.
    `connections` None means as many as there are descriptors for.
    """

    header_bytes: int = 64 * KIB
    field_bytes: int = 16 * KIB
    fields: int = 100
    target_bytes: int = 8 * KIB
    body_bytes: int = 32 * MIB
    head_s: float = 10.0
    body_s: float = 30.0
    body_rate: int = 16 * KIB
    idle_s: float = 75.0
    write_stall_s: float = 30.0
    linger_s: float = 1.0
    linger_bytes: int = 64 * KIB
    refused_bytes: int = 128 * MIB
    kept_pipelined_bytes: int = 64 * KIB
    write_high_bytes: int = 16 * KIB
    write_low_bytes: int = 4 * KIB
    unsent_bytes: int = 16 * KIB
    connections: int | None = None
    backlog: int = 1024


class RequestHead(NamedTuple):
    """One request's head, framing already checked. `target` is the raw request target, `path` it up to `?`.

    `named` are the headers by name, the first of several, when the server has made the head. `notes` are the
    application's own: a head that repeats on its connection, whatever its length, comes with the same ones.
    """

    method: bytes
    target: bytes
    path: bytes
    headers: Headers
    content_length: int | None
    peer: str
    named: Mapping[bytes, bytes] | None = None
    notes: Notes | None = None

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of this lower-case header name, or None."""
        if self.named is not None:
            return self.named.get(name)
        for key, value in self.headers:
            if key == name:
                return value
        return None


class RefusedRequest(NamedTuple):
    """A whole answer made before the body was read: the server sends it, lingers, and closes."""

    status: int
    headers: Headers
    body: bytes


class Exchange(Protocol):
    """One request and its one answer, on one client connection.

    An answer is either `respond` once, or `start`, any number of `write`, and `finish` or `abort`. Calls after
    the client has left do nothing. `Content-Length`, `Transfer-Encoding`, `Connection`, `Date` are the
    server's: the application never sets them, except through `start(length=...)`. Headers that were written and
    checked before (`header_lines` with `ANSWER_RESERVED`) may be given as lines.
    """

    @property
    def head(self) -> RequestHead:
        """The request's head."""

    @property
    def gone(self) -> bool:
        """Whether the client has left."""

    @property
    def started(self) -> bool:
        """Whether `start` has been called."""

    def adorn(self, lines: Lines) -> None:
        """Have these lines in the head of the answer, whatever it will be; call it before the answer begins."""

    def respond(self, status: int, headers: Headers | Lines, body: bytes, *, close: bool = False) -> None:
        """Send a whole answer; `close` ends the connection after it."""

    def start(self, status: int, headers: Headers | Lines, *, length: int | None = None) -> None:
        """Send the head of a streamed answer: sized when `length` is known, else chunked."""

    def write(self, data: bytes) -> None:
        """Send body bytes of a started answer as they are."""

    def finish(self) -> None:
        """End a started answer properly; the connection may be used again."""

    def abort(self) -> None:
        """Cut the connection: a started answer that must not look finished (INV-10)."""

    def release_body(self) -> None:
        """Give the body's bytes back to the budget before the end: the application keeps none of them any more."""


class Application(Protocol):
    """What serves requests; one object for all connections."""

    def on_head(self, head: RequestHead) -> RefusedRequest | None:
        """Check what the head alone tells, before any body byte is read or 100 Continue is sent."""

    def on_request(self, exchange: Exchange, body: bytes) -> None:
        """Answer one whole request, now or later."""

    def on_gone(self, exchange: Exchange) -> None:
        """The client of an unfinished exchange has left (closed or half-closed); called once."""

    def on_slow(self, exchange: Exchange, slow: bool) -> None:
        """The client of a started answer has fallen behind (True) or caught up (False)."""

    def bad_request(
        self, status: int, code: str, message: str, head: RequestHead | None = None
    ) -> RefusedRequest:
        """Dress a framing error, a cap or a deadline in the application's error dialect.

        `head` is the last that the connection has read whole, which names its client.
        """

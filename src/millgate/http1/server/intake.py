"""From a client's bytes to whole requests, one at a time: llhttp checks every byte, we check what it leaves open.

No callback of ours runs inside the parser. Its callbacks are methods of lists (`on_body` appends a piece; the end of a
message appends None to the pieces, the end of a head empties a list of one token). A head is cut out at CRLF CRLF and
fed alone, a sized body is fed to its last byte and no further. So nothing that is pipelined is parsed before its turn.
Two readings of the same bytes are held against each other: llhttp must see the end of the head and of the body exactly
where we see it.

A head that repeats the connection's last one (see `repeats`) is not parsed again, and neither is its body, whose
length says where it ends. Llhttp then sees that request not at all and waits where the one before has ended.
"""

from collections.abc import Callable
from functools import partial
from io import BytesIO
from typing import Final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from millgate.http1.client.repeats import Notes
from millgate.http1.server.budget import ByteBudget, Share
from millgate.http1.server.contract import Application, RefusedRequest, RequestHead, ServerLimits
from millgate.http1.server.framing import ChunkHeads, UnacceptableError, body_too_large, read_framing
from millgate.http1.server.last_head import LastHead
from millgate.http1.wire.fields import HEAD_END, HeaderReader, stays_open

IDLE: Final = 0
HEAD: Final = 1
BODY: Final = 2

_FRAGMENTS: Final = 4096
"""Chunks and their heads in one read: that many take a millisecond, and a read can bring twenty times as many."""

_NOT_SPOKEN: Final = {
    b"PRI * HTTP/2.0\r\n": (505, "unsupported_version", "HTTP/2"),
    b"PROXY ": (400, "invalid_request", "the PROXY protocol"),
    b"\r\n\r\n\0\r\nQUIT\n": (400, "invalid_request", "the PROXY protocol"),
}
"""What balancers may be set to send: how it begins, and what is answered."""

ShareOf = Callable[[RequestHead], Share]
"""Finds where the body behind a head is booked."""

_READER: Final = HeaderReader()
_NO_SHARE: Final = ByteBudget(0).share("", "")


class EarlyRefusalError(Exception):
    """The application has refused a request by its head while the body is still to come."""

    def __init__(self, refusal: RefusedRequest) -> None:
        super().__init__(refusal.status)
        self.refusal = refusal


class Intake:
    """Reads what one client sends, request by request.

    When `feed` has returned with `whole`, the request is in `head`, `body`, `refusal` (the application's, of a
    request without a body), `keep_alive`, `may_chunk` (False for HTTP/1.0) and `reserved_bytes` (of `share`, which is
    the budget's for this head by `share_of`); `next` must be called before the next `feed`. `fragmented`: a flood of chunks.
    """

    head: RequestHead

    def __init__(self, application: Application, limits: ServerLimits, share_of: ShareOf) -> None:
        self._application = application
        self._limits = limits
        self._share_of = share_of
        self.share = _NO_SHARE
        self._parts: list[bytes | None] = []
        self._headless: list[None] = []
        self.on_body = self._parts.append
        self.on_headers_complete = self._headless.clear
        self.on_message_complete = partial(self._parts.append, None)
        self._chunks = ChunkHeads(self._parts, limits)
        self.on_chunk_header = self._chunks.on_header
        self.on_chunk_complete = self._chunks.on_complete
        self._parser = HttpRequestParser(self)
        self._raw = bytearray()
        self._gathered = BytesIO()
        self._last = LastHead()
        self._repeated = False
        self.peer = ""
        self.next()

    def next(self) -> None:
        """Expect a new request; what the last one reserved is its exchange's to release."""
        self.body = b""
        self.wire_bytes = 0
        self.reserved_bytes = 0
        self.keep_alive = False
        self.whole = False
        if self._repeated:  # all else is as it was, and llhttp still waits where the request before has ended
            self._repeated = False
            return
        self._headless.append(None)
        self._chunks.begin()
        self._chunked = False
        self._size_left = 0
        self._tail = b""
        self.phase = IDLE
        self.refusal: RefusedRequest | None = None
        self.expects = self.fragmented = False
        self.may_chunk = True

    def release(self) -> None:
        """Give back what an unfinished body has reserved."""
        self.share.release(self.reserved_bytes)
        self.reserved_bytes = 0
        self._raw.clear()
        self._gathered = BytesIO()
        self._parts.clear()
        self._last.forget()

    def feed(self, data: bytes, begin: int) -> int:
        """Read on from `begin` to the end of one request or of the data; return where reading stopped.

        Raises UnacceptableError or EarlyRefusalError, after which nothing more may be fed.
        """
        try:
            if self.phase != BODY:
                begin = self._feed_repeated(data, begin) or self._feed_head(data, begin)
                if self.whole or self.phase != BODY or begin == len(data):  # the usual request ends here
                    return begin
            return self._feed_chunks(data, begin) if self._chunked else self._feed_sized(data, begin)
        except HttpParserUpgrade:
            raise UnacceptableError(400, "invalid_request", "no protocol upgrade is offered here") from None
        except (HttpParserError, UnacceptableError) as error:
            raise _complaint(error, b"" if self.phase == BODY else data[begin:]) from None

    # ---- heads

    def _feed_repeated(self, data: bytes, begin: int) -> int:
        """Take the last head again, and the body if it is all there; return their end, 0 for any other bytes."""
        again = self._last.again(data, begin) if self.phase == IDLE and not self._tail else None
        if again is None:
            return 0
        self.head, length, stop = again
        self._repeated = self.keep_alive = True
        if (refusal := self._application.on_head(self.head)) is not None:
            self.phase = BODY
            raise EarlyRefusalError(refusal)
        end = stop + length
        if end > len(data) or length > self._limits.body_bytes:
            self._open_body(length, chunked=False)
            return stop
        self._reserve(length)
        self.body = data[stop:end]
        self.wire_bytes = length
        self.whole = True
        return end

    def _feed_head(self, data: bytes, begin: int) -> int:
        raw = self._raw
        if raw:
            return self._resume_head(raw, data, begin)
        if self._tail or data[begin] in b"\r\n":
            begin, self._tail = _skip_empty_lines(data, begin, self._tail)
        end = data.find(HEAD_END, begin)
        if end < 0:
            return self._await_head(data, begin)
        block = data[begin : end + 4]
        self._read_head(block, block)
        return end + 4

    def _resume_head(self, raw: bytearray, data: bytes, begin: int) -> int:
        """Go on with a head that came in pieces."""
        known_bytes = len(raw)
        raw += data[begin:]
        end = raw.find(HEAD_END, max(known_bytes - 3, 0))
        if end < 0:
            del raw[known_bytes:]
            return self._await_head(data, begin)
        stop = begin + end + 4 - known_bytes
        head = bytes(raw[: end + 4])
        raw.clear()
        self._read_head(head, data[begin:stop])
        return stop

    def _await_head(self, data: bytes, begin: int) -> int:
        """Keep the beginning of a head; llhttp sees it at once, so that garbage is not waited for."""
        if begin < len(data):
            self.phase = HEAD
            self._raw += data[begin:]
            if len(self._raw) > self._limits.header_bytes:
                raise _header_too_large(self._limits)
            self._parser.feed_data(data[begin:])
            if not self._headless:
                raise _bare_line_end()
        return len(data)

    def _read_head(self, block: bytes, fresh: bytes) -> None:
        """Check a whole head (`fresh` is what llhttp has not seen of it), ask the application, plan the body."""
        limits = self._limits
        if len(block) > limits.header_bytes:
            raise _header_too_large(self._limits)
        try:
            self._parser.feed_data(fresh)
        except HttpParserUpgrade:  # httptools would read no body behind it
            self._parts.clear()
            self._parser = _reading_anew(self, block)
        if self._headless:
            raise _bare_line_end()
        lines, opening, opening_bytes = _split_head(block, limits)
        self._open_request(opening, lines)
        if self.keep_alive and not self.expects:
            most_bytes = min(limits.field_bytes, limits.header_bytes)
            self._last.remember(self.head, block, lines, opening_bytes, most_bytes)
        else:
            self._last.forget()

    def _open_request(self, opening: list[bytes], lines: list[bytes]) -> None:
        method, target, version = opening
        fields = _READER.read(lines)
        named = _by_name(fields)
        length, chunked, expects = read_framing(version, target, fields, named)
        self.may_chunk = version == b"HTTP/1.1"
        self.keep_alive = self.may_chunk and stays_open(fields, named)
        path = target.partition(b"?")[0]
        self.head = head = RequestHead(method, target, path, fields, length, self.peer, named, Notes())
        self.refusal = refusal = self._application.on_head(head)
        if not length and not chunked:
            self._end()
            return
        if refusal is not None:
            self.phase = BODY
            raise EarlyRefusalError(refusal)
        self.share = self._share_of(head)
        self._open_body(length, chunked=chunked)
        self.expects = expects

    def _open_body(self, length: int | None, *, chunked: bool) -> None:
        self.phase = BODY
        if length is not None:
            if length > self._limits.body_bytes:
                raise body_too_large(self._limits.body_bytes)
            if not self.share.fits(length):  # announced and not booked: a promise of bytes takes no room
                raise self._no_room(length)
            self._size_left = length
        self._chunked = chunked
        if not self._repeated:
            self._headless.append(None)  # emptied again only by a second head

    # ---- bodies

    def _feed_sized(self, data: bytes, begin: int) -> int:
        stop = begin + self._size_left
        piece = data[begin:stop]
        self._reserve(len(piece))
        if not self._repeated:
            self._parts.clear()
            self._parser.feed_data(piece)
        self.wire_bytes += len(piece)
        self._size_left -= len(piece)
        if self._size_left:
            self._gathered.write(piece)
            return len(data)
        if self._gathered.tell():
            self._gathered.write(piece)
            piece = self._gathered.getvalue()
            self._gathered = BytesIO()
        self.body = piece
        self._end()
        return stop

    def _feed_chunks(self, data: bytes, begin: int) -> int:
        """Read chunks; only llhttp knows where the last one ends, so what follows it in the same read is dropped."""
        piece, parts = data[begin:], self._parts
        self._parser.feed_data(piece)
        self.fragmented = len(parts) > _FRAGMENTS
        self.wire_bytes += len(piece)
        self._chunks.check(piece)
        body, ended = _take(parts)
        self._gathered.write(body)
        if self._gathered.tell() > self._limits.body_bytes:
            raise body_too_large(self._limits.body_bytes)
        self._reserve(len(body))
        self._chunks.check_overhead(self._gathered.tell())
        if ended:
            self.body = self._gathered.getvalue()
            self._gathered = BytesIO()
            self.whole = True
            self.phase = IDLE
            if not self._headless or not self._chunks.tail.endswith(HEAD_END):
                self.keep_alive = False  # something followed in the same read and is lost
        return len(data)

    def _end(self) -> None:
        """Hold llhttp's end of the message against ours."""
        if None not in self._parts and not self._repeated:
            raise UnacceptableError(400, "invalid_request", "malformed HTTP: ambiguous framing")
        self._parts.clear()
        self.whole = True
        self.phase = IDLE

    def _reserve(self, size_bytes: int) -> None:
        if not self.share.reserve(size_bytes):
            raise self._no_room(self.reserved_bytes + size_bytes)
        self.reserved_bytes += size_bytes

    def _no_room(self, size_bytes: int) -> UnacceptableError:
        """Return the complaint about a body of this size, for which there is no room now, or never."""
        most_bytes = self.share.most_bytes
        return body_too_large(most_bytes) if size_bytes > most_bytes else _over_budget()


def _by_name(fields: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    named = dict(fields)
    return named if len(named) == len(fields) else dict(reversed(fields))  # the first of several counts


def _reading_anew(intake: "Intake", block: bytes) -> HttpRequestParser:
    """Return a parser that has read this head as one without an upgrade; which to ignore is `read_framing`'s to say."""
    parser = HttpRequestParser(intake)
    lines = [line for line in block.split(b"\r\n") if not line.lower().startswith(b"upgrade:")]
    parser.feed_data(b"\r\n".join(lines))
    return parser


def _take(parts: list[bytes | None]) -> tuple[bytes, bool]:
    """Empty the pieces that llhttp has found; return those of the present body, and whether it has ended."""
    ended = None in parts
    if ended:
        del parts[parts.index(None) :]  # what follows is the body of another request
    body = b"".join(filter(None, parts))
    parts.clear()
    return body, ended


def _skip_empty_lines(data: bytes, begin: int, tail: bytes) -> tuple[int, bytes]:
    """Skip empty lines before a request (RFC 9112 section 2.2); the CR LF of one may come in two reads.

    `tail` is the lone CR at the end of the last read, if any; returns where the request begins, and the new tail.
    """
    if tail and not data.startswith(b"\n", begin):
        raise _bare_line_end()
    begin += len(tail)
    while data.startswith(b"\r\n", begin):
        begin += 2
    if data.startswith(b"\r", begin) and begin + 1 == len(data):
        return len(data), b"\r"
    if data.startswith((b"\r", b"\n"), begin):
        raise _bare_line_end()
    return begin, b""


def _split_head(block: bytes, limits: ServerLimits) -> tuple[list[bytes], list[bytes], int]:
    """Return a head's fields, its first line's method, target and version, and that line's length, held to the caps."""
    lines = block[:-4].split(b"\r\n")
    if len(lines) > limits.fields + 1:
        raise UnacceptableError(431, "header_too_large", f"more than {limits.fields} header fields")
    if len(block) > limits.field_bytes and max(map(len, lines[1:]), default=0) > limits.field_bytes:
        raise _header_too_large(limits)
    opening = lines[0].split(b" ")
    if len(opening) != 3:
        raise UnacceptableError(400, "invalid_request", "malformed HTTP: a request line has three parts")
    if len(opening[1]) > limits.target_bytes:
        message = f"the request target is limited to {limits.target_bytes} bytes"
        raise UnacceptableError(414, "target_too_long", message)
    return lines[1:], opening, len(lines[0])


def _complaint(error: Exception, opening: bytes) -> UnacceptableError:
    """Say what is wrong with what begins so: another protocol, or as the error says."""
    for mark, (status, code, name) in _NOT_SPOKEN.items():
        if opening.startswith(mark):
            return UnacceptableError(status, code, f"{name} is not spoken here")
    if isinstance(error, UnacceptableError):
        return error
    return UnacceptableError(400, "invalid_request", f"malformed HTTP: {error}")  # llhttp's own words


def _bare_line_end() -> UnacceptableError:
    return UnacceptableError(400, "invalid_request", "malformed HTTP: lines must end in CR LF")


def _over_budget() -> UnacceptableError:
    return UnacceptableError(503, "overloaded", "too many request bodies are being held; try again soon")


def _header_too_large(limits: ServerLimits) -> UnacceptableError:
    message = f"the header is limited to {limits.header_bytes} bytes, one field to {limits.field_bytes}"
    return UnacceptableError(431, "header_too_large", message)

"""What llhttp leaves open in a request's head; every rule here is a way in which two servers could disagree.

A request that is framed in two ways, or for two hosts, is read differently by the next server on its path. The
difference is an attack (request smuggling, RFC 9112 section 11.2). Nothing is repaired: it is refused.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Final

from millgate.http1.server.contract import ServerLimits
from millgate.http1.wire.fields import MOST_LENGTH_DIGITS

_TARGET: Final = re.compile(rb"/[!\"$-~]*")
"""Origin form in visible ASCII; no fragment, which never belongs on the wire (RFC 9112 section 3.2)."""

_HOST: Final = re.compile(rb"(?:\[[0-9A-Fa-f:.]{2,45}\]|\*|[A-Za-z0-9\-._~]{1,255})(?::([0-9]{1,5}))?")
"""uri-host [":" port] of RFC 3986 without the sub-delimiters and percent-encodings of its names: no host has them,
and a list of hosts, a path or userinfo would hide in them. `*` alone is what Envoy Gateway's probes name where a route has no host."""

_HIGHEST_PORT: Final = 65535

_IGNORED_UPGRADE: Final = b"h2c"
"""Java's client offers HTTP/2 with every first request and takes an answer in HTTP/1.1 (RFC 9110 section 7.8)."""

_VERSIONS: Final = frozenset((b"HTTP/1.1", b"HTTP/1.0"))

_ONCE: Final = frozenset((b"host", b"content-length", b"transfer-encoding", b"expect", b"upgrade"))
"""Headers that may stand once only, because servers disagree about which of two counts."""


class UnacceptableError(Exception):
    """A request that is refused before any handler has seen it: status, code and message of the answer."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


def read_framing(
    version: bytes,
    target: bytes,
    fields: Sequence[tuple[bytes, bytes]],
    named: Mapping[bytes, bytes],
) -> tuple[int | None, bool, bool]:
    """Check a head that llhttp has accepted; `named` are its fields by name. Raise UnacceptableError.

    Only HTTP/1.0 may come without Host (RFC 9112 section 3.2), as HAProxy's probes do.

    Returns the Content-Length, whether the body is chunked, and whether the client waits for 100 Continue.
    """
    if version not in _VERSIONS:
        raise UnacceptableError(505, "unsupported_version", "only the versions 1.1 and 1.0 are spoken here")
    if len(named) != len(fields):
        _refuse_repeated(fields)
    host = named.get(b"host")
    is_named = version == b"HTTP/1.0" if host is None else _is_host(host)
    if not is_named:
        raise UnacceptableError(400, "invalid_request", "exactly one valid Host header is required")
    if not _is_target(target):
        message = "the request target must be a path in visible ASCII, not an address as for a proxy"
        raise UnacceptableError(400, "invalid_request", message)
    if named.get(b"upgrade", _IGNORED_UPGRADE).lower() != _IGNORED_UPGRADE:
        # Agents that ask for a WebSocket first (Codex) go on over HTTP at once only after 426; after any other status
        # they try again for seconds.
        message = "no WebSocket and no other upgrade is offered here: send the request over HTTP"
        raise UnacceptableError(426, "upgrade_refused", message)
    chunked = b"transfer-encoding" in named and _chunked(version, named)
    length = named.get(b"content-length")
    expects = b"expect" in named and _expects(version, named)
    return None if length is None else _length(length), chunked, expects


def _refuse_repeated(fields: Sequence[tuple[bytes, bytes]]) -> None:
    seen = set()
    for name, _value in fields:
        if name in _ONCE:
            if name in seen:
                raise UnacceptableError(400, "invalid_request", f"more than one {name.decode()} header")
            seen.add(name)


@lru_cache(maxsize=256)
def _is_target(value: bytes) -> bool:
    return _TARGET.fullmatch(value) is not None


@lru_cache(maxsize=256)
def _is_host(value: bytes) -> bool:
    match = _HOST.fullmatch(value)
    return match is not None and int(match[1] or 0) <= _HIGHEST_PORT


def _chunked(version: bytes, named: Mapping[bytes, bytes]) -> bool:
    if version != b"HTTP/1.1":
        raise UnacceptableError(400, "invalid_request", "Transfer-Encoding is not allowed on HTTP/1.0")
    if b"content-length" in named:
        raise UnacceptableError(
            400, "invalid_request", "Content-Length and Transfer-Encoding exclude each other"
        )
    coding = named[b"transfer-encoding"].lower()
    if coding == b"chunked":
        return True
    if b"chunked" in coding:
        raise UnacceptableError(400, "invalid_request", "the transfer coding must be chunked, once and alone")
    raise UnacceptableError(501, "unsupported_coding", "the only transfer coding is chunked")


def _length(value: bytes) -> int:
    if not value.isdigit() or len(value) > MOST_LENGTH_DIGITS:
        raise UnacceptableError(400, "invalid_request", "Content-Length must be a decimal number")
    return int(value)


def _expects(version: bytes, named: Mapping[bytes, bytes]) -> bool:
    if named[b"expect"].lower() != b"100-continue":
        raise UnacceptableError(417, "expectation_failed", "the only expectation is 100-continue")
    return version == b"HTTP/1.1"


_OVERHEAD_BYTES: Final = 64 * 1024
_OVERHEAD_RATIO: Final = 8
"""A chunk of one byte costs six on the wire; what needs more than eight is a flood of framing, not a body."""

_ABSURD_BYTES: Final = 2**63
"""Beyond what a signed integer holds: servers disagree about what such a number is."""
_TAIL_BYTES: Final = 64
"""What is kept of the wire from one read to the next: the head of a chunk may come in two."""


def body_too_large(most_bytes: int) -> UnacceptableError:
    """Say that a body has more bytes than may ever be taken."""
    message = f"the request body is limited to {most_bytes} bytes"
    return UnacceptableError(413, "body_too_large", message)


class ChunkHeads:
    """Follows one connection's chunks beside llhttp, which calls `on_header` and `on_complete`.

    `parts` are the pieces of the body as llhttp finds them; a head puts an empty one among them. `tail` is the end
    of what has been read of the present body.
    """

    def __init__(self, parts: list[bytes | None], limits: ServerLimits) -> None:
        self._parts = parts
        self._limits = limits
        self._ends: list[None] = []
        self.on_header: Callable[[], None] = partial(parts.append, b"")
        self.on_complete: Callable[[], None] = partial(self._ends.append, None)
        self.begin()

    def begin(self) -> None:
        """Expect the chunks of another body."""
        self._ends.clear()
        self._open = 0
        self._wire_bytes = 0
        self.tail = b""

    def check(self, piece: bytes) -> None:
        """Look at what llhttp has found in these bytes; raise UnacceptableError for a chunk longer than any body.

        It would only be waited for. Behind the newest head stands what there is of its chunk.
        """
        parts, wire = self._parts, self.tail + piece
        self.tail = wire[-_TAIL_BYTES:]
        self._wire_bytes += len(piece)
        begun = parts.count(b"")
        self._open += begun - len(self._ends)
        self._ends.clear()
        if begun and self._open:
            self._check_size(wire, len(wire) - len(parts[-1] or b"") - len(b"\r\n"))

    def _check_size(self, wire: bytes, end: int) -> None:
        """Check the number in the line that ends here."""
        begin = wire.rfind(b"\n", 0, end) + 1
        if wire[end:][:2] != b"\r\n" or (not begin and self._wire_bytes > len(wire)):
            return  # a trailer is under way, or an extension is so long that the number is out of sight
        try:
            size = int(wire[begin:end].partition(b";")[0], 16)
        except ValueError:
            return  # the last chunk's head is followed by a trailer
        if size >= _ABSURD_BYTES:
            raise UnacceptableError(400, "invalid_request", "malformed HTTP: no chunk is so long")
        if size > self._limits.body_bytes:
            raise body_too_large(self._limits.body_bytes)

    def check_overhead(self, body_bytes: int) -> None:
        """Raise UnacceptableError if so many body bytes cannot have needed what has come on the wire."""
        if self._wire_bytes > _OVERHEAD_BYTES + _OVERHEAD_RATIO * body_bytes:
            raise UnacceptableError(400, "invalid_request", "more chunk framing than body")

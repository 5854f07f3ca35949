"""What both sides of the wire share: reading and writing header lines, and the names that stay on one connection."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Final, NewType

Pair = tuple[bytes, bytes]
Lines = NewType("Lines", bytes)
"""Whole header lines, each with its CRLF, written by `header_lines`: checked once, sent often."""

HOP_BY_HOP: Final = frozenset(
    b"""connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding
    upgrade""".split()
)
"""Names that speak of one connection only (RFC 9110 section 7.6.1, and the two old `keep-alive`, `proxy-connection`)."""

FRAMING: Final = frozenset(
    (b"connection", b"content-length", b"keep-alive", b"transfer-encoding", b"upgrade")
)
"""Names that frame a message: the writer of the message sets them, no caller passes them."""

REQUEST_RESERVED: Final = FRAMING | {b"host"}
"""What a request's head line and framing write themselves."""
ANSWER_RESERVED: Final = FRAMING | {b"date"}
"""What an answer's head line and framing write themselves."""

HEAD_END: Final = b"\r\n\r\n"
MOST_LENGTH_DIGITS: Final = 20
"""Of a Content-Length: 64 bits. llhttp passes any zeros before it, and Python reads no number of more than 4,300 digits."""

_PERSISTENCE: Final = (b"connection", b"proxy-connection")
"""Names that may say `close`."""

_PASSING: Final = re.compile(rb"auth|cookie|key|password|secret|session|ticket|token|trace|request-id")
"""Names whose values are never remembered beyond their request: secrets, and what is another in each request."""

_KNOWN_LINES: Final = 4096
_KNOWN_LINE_BYTES: Final = 256

_name: Final = itemgetter(0)
_join_pair: Final = b": ".join


class _KnownLines(dict[bytes, Pair]):
    """Lines that have been split before; a missing one is split, and learned if it may be kept."""

    def __missing__(self, line: bytes) -> Pair:
        name, _colon, value = line.partition(b":")
        pair = (name.lower(), value.strip(b" \t"))
        if len(line) <= _KNOWN_LINE_BYTES and not _PASSING.search(pair[0]):
            if len(self) >= _KNOWN_LINES:
                self.clear()
            self[line] = pair
        return pair


class HeaderReader:
    """Splits header lines into pairs, names lower-cased; remembers lines, because clients repeat them.

    An SDK sends the same fifteen lines with every request, and to find a pair costs a tenth of making it. The memory
    is bounded (4096 lines of 256 bytes), starts again when it is full, and never holds a credential.
    """

    def __init__(self) -> None:
        self._known = _KnownLines()
        self._find = self._known.__getitem__

    def __len__(self) -> int:
        return len(self._known)

    def read(self, lines: Iterable[bytes]) -> list[Pair]:
        """Return the pairs of lines that a parser has already found to be well-formed."""
        return list(map(self._find, lines))


class _KnownPairs(dict[Pair, bytes]):
    """Pairs that have been written before; a missing one is checked, and learned if it may be kept."""

    def __init__(self, reserved: frozenset[bytes]) -> None:
        super().__init__()
        self._reserved = reserved

    def __missing__(self, pair: Pair) -> bytes:
        name, value = pair
        line = b"%b: %b\r\n" % pair
        if (
            line.count(b"\n") != 1
            or line.count(b"\r") != 1
            or line.find(b"\0") >= 0
            or name in self._reserved
        ):
            header_lines((pair,), self._reserved)  # says what is wrong
        if len(value) <= _KNOWN_LINE_BYTES and not _PASSING.search(name):
            if len(self) >= _KNOWN_LINES:
                self.clear()
            self[pair] = line
        return line


class HeaderWriter:
    """Writes header lines as `header_lines` does; remembers pairs, as `HeaderReader` remembers lines.

    For headers that are passed on, where nearly every pair has been seen before.
    """

    def __init__(self, reserved: frozenset[bytes] = FRAMING) -> None:
        self._known = _KnownPairs(reserved)
        self._find = self._known.__getitem__

    def __len__(self) -> int:
        return len(self._known)

    def write(self, headers: Sequence[Pair]) -> Lines:
        """Join headers into lines, each with its CRLF; raise ValueError for one that could break the framing."""
        return Lines(b"".join(map(self._find, headers)))


def header_lines(headers: Sequence[Pair], reserved: frozenset[bytes] = FRAMING) -> Lines:
    """Join headers into lines, each with its CRLF; raise ValueError for one that could break the framing.

    The whole block is scanned once for stray CR, LF and NUL, which costs less than looking at each pair.
    """
    if not headers:
        return Lines(b"")
    lines = b"\r\n".join(map(_join_pair, headers))
    breaks = len(headers) - 1
    if (
        lines.count(b"\n") != breaks or lines.count(b"\r") != breaks or lines.find(b"\0") >= 0
    ):  # `in` would raise and catch within
        raise ValueError("a header with CR, LF or NUL in it cannot be sent")
    if not reserved.isdisjoint(map(_name, headers)):
        names = b", ".join(sorted(reserved.intersection(map(_name, headers))))
        raise ValueError(f"framing headers are written by the wire alone: {names.decode()}")
    return Lines(lines + b"\r\n")


def listed(value: bytes) -> list[bytes]:
    """Split a comma-separated header value into its lower-case members."""
    return [member.strip().lower() for member in value.split(b",") if member.strip()]


def stays_open(fields: Sequence[Pair], named: Mapping[bytes, bytes]) -> bool:
    """Tell whether an HTTP/1.1 message lets its connection be used again; `named` are its fields by name.

    llhttp knows it only until a message is complete, and a head without a body completes it at once. Like llhttp this
    takes the old `Proxy-Connection` at its word: what comes after it would be refused.
    """
    if b"connection" not in named and b"proxy-connection" not in named:
        return True
    return not any(name in _PERSISTENCE and _says_close(value) for name, value in fields)


@lru_cache(maxsize=256)
def _says_close(value: bytes) -> bool:
    return b"close" in listed(value)

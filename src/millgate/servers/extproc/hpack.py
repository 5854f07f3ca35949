"""Header compression of HTTP/2 (RFC 7541), as far as a server needs it that answers with fixed headers: decoding."""

from collections import deque
from typing import Final

Field = tuple[bytes, bytes]

TABLE_BYTES: Final = 4096
"""The size of the dynamic table, which we never announce another of (section 4.2)."""
_ENTRY_BYTES: Final = 32
MOST_LIST_BYTES: Final = 64 * 1024
"""Most bytes of names and values in one block; gRPC clients send some hundred."""

_VALUELESS: Final = b"""
accept-language accept-ranges accept access-control-allow-origin age allow authorization
cache-control content-disposition content-encoding content-language content-length content-location
content-range content-type cookie date etag expect expires from host if-match if-modified-since
if-none-match if-range if-unmodified-since last-modified link location max-forwards
proxy-authenticate proxy-authorization range referer refresh retry-after server set-cookie
strict-transport-security transfer-encoding user-agent vary via www-authenticate
"""
_STATIC: Final[tuple[Field, ...]] = tuple(
    (name, value)
    for name, *values in (
        (b":authority", b""),
        (b":method", b"GET", b"POST"),
        (b":path", b"/", b"/index.html"),
        (b":scheme", b"http", b"https"),
        (b":status", b"200", b"204", b"206", b"304", b"400", b"404", b"500"),
        (b"accept-charset", b""),
        (b"accept-encoding", b"gzip, deflate"),
        *((name, b"") for name in _VALUELESS.split()),
    )
    for value in values
)
"""Appendix A; names with several values stand once for each."""

_LENGTHS: Final[tuple[tuple[int, bytes], ...]] = (
    (5, b"012aceiost"),
    (6, b" %-./3456789=A_bdfghlmnpru"),
    (7, b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, b"&*,;XZ"),
    (10, b'!"()?'),
    (11, b"'+|"),
    (12, b"#>"),
    (13, b"\0$@[]~"),
    (14, b"^}"),
    (15, b"<`{"),
    (19, bytes((92, 195, 208))),
    (20, bytes((128, 130, 131, 162, 184, 194, 224, 226))),
    (21, bytes((153, 161, 167, 172, 176, 177, 179, 209, 216, 217, 227, 229, 230))),
    (
        22,
        bytes((129, 132, 133, 134, 136, 146, 154, 156, 160, 163, 164, 169, 170, 173, 178, 181, 185, 186, 187))
        + bytes((189, 190, 196, 198, 228, 232, 233)),
    ),
    (
        23,
        bytes((1, 135, 137, 138, 139, 140, 141, 143, 147, 149, 150, 151, 152, 155, 157, 158, 165, 166, 168))
        + bytes((174, 175, 180, 182, 183, 188, 191, 197, 231, 239)),
    ),
    (24, bytes((9, 142, 144, 145, 148, 159, 171, 206, 215, 225, 236, 237))),
    (25, bytes((199, 207, 234, 235))),
    (26, bytes((192, 193, 200, 201, 202, 205, 210, 213, 218, 219, 238, 240, 242, 243, 255))),
    (27, bytes((203, 204, 211, 212, 214, 221, 222, 223, 241, *range(244, 249), *range(250, 255)))),
    (28, bytes((*range(2, 9), 11, 12, *range(14, 22), *range(23, 32), 127, 220, 249))),
    (30, bytes((10, 13, 22))),
)
"""Appendix B: the symbols of each length. The code is canonical, so that the lengths give the codes; the code that is left,
thirty ones, is the end of a string."""


class HpackError(ValueError):
    """A header block that cannot be read: the connection has no common state any more."""


def _codes() -> dict[tuple[int, int], int]:
    """Return the symbol of each code, by its length and its bits."""
    codes: dict[tuple[int, int], int] = {}
    code = before = 0
    for length, symbols in _LENGTHS:
        code <<= length - before
        before = length
        for symbol in symbols:
            codes[length, code] = symbol
            code += 1
    return codes


_CODES: Final = _codes()
_KNOWN: Final[dict[bytes, bytes]] = {}
_MOST_KNOWN: Final = 512
_LONGEST_KNOWN: Final = 64


def decoded(coded: bytes) -> bytes:
    """Return a Huffman-coded string; HpackError for a wrong ending. Short ones repeat, and are remembered."""
    known = _KNOWN.get(coded)
    if known is not None:
        return known
    text = _decoded(coded)
    if len(coded) <= _LONGEST_KNOWN:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[coded] = text
    return text


def _decoded(coded: bytes) -> bytes:
    text = bytearray()
    code = length = 0
    for byte in coded:
        for shift in range(7, -1, -1):
            code = code << 1 | byte >> shift & 1
            length += 1
            symbol = _CODES.get((length, code))
            if symbol is not None:
                text.append(symbol)
                code = length = 0
            elif length > 29:
                raise HpackError("no such code")
    if length > 7 or code != (1 << length) - 1:
        raise HpackError("a string is padded with ones, seven at most")
    return bytes(text)


class HpackDecoder:
    """Reads the header blocks of one connection, in order."""

    def __init__(self) -> None:
        self._dynamic: deque[Field] = deque()
        self._size_bytes = 0
        self._most_bytes = TABLE_BYTES
        self._last: tuple[bytes, list[Field]] = b"", []

    def read(self, block: bytes) -> list[Field]:
        """Return the fields of a whole block; HpackError for one that cannot be read, or is too long.

        A block that changed nothing in the table means the same when it comes again.
        """
        last, fields = self._last
        if block == last and block:
            return fields
        fields, at, room, is_pure = [], 0, MOST_LIST_BYTES, True
        try:
            while at < len(block):
                first = block[at]
                if first & 0x80:
                    index, at = _number(block, at, 7)
                    fields.append(self._entry(index))
                elif first & 0xE0 == 0x20:
                    size, at = _number(block, at, 5)
                    is_pure = False
                    self._resize(size)
                    continue
                else:
                    field, at = self._literal(block, at, 6 if first & 0x40 else 4)
                    fields.append(field)
                    if first & 0x40:
                        is_pure = False
                        self._add(field)
                name, value = fields[-1]
                room -= len(name) + len(value) + _ENTRY_BYTES
                if room < 0:
                    raise HpackError("too many fields")
        except IndexError:
            raise HpackError("the block ends too early") from None
        self._last = (block, fields) if is_pure else (b"", [])
        return fields

    def _literal(self, block: bytes, at: int, bits: int) -> tuple[Field, int]:
        index, at = _number(block, at, bits)
        if index:
            name = self._entry(index)[0]
        else:
            name, at = _string(block, at)
        value, at = _string(block, at)
        return (name, value), at

    def _entry(self, index: int) -> Field:
        if not index:
            raise HpackError("no such entry")
        if index <= len(_STATIC):
            return _STATIC[index - 1]
        at = index - len(_STATIC) - 1
        if at >= len(self._dynamic):
            raise HpackError("no such entry")
        return self._dynamic[at]

    def _add(self, field: Field) -> None:
        self._dynamic.appendleft(field)
        self._size_bytes += len(field[0]) + len(field[1]) + _ENTRY_BYTES
        self._evict()

    def _resize(self, size_bytes: int) -> None:
        if size_bytes > TABLE_BYTES:
            raise HpackError("a table larger than was offered")
        self._most_bytes = size_bytes
        self._evict()

    def _evict(self) -> None:
        while self._size_bytes > self._most_bytes:
            name, value = self._dynamic.pop()
            self._size_bytes -= len(name) + len(value) + _ENTRY_BYTES


def _number(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """Return an integer with this prefix, and where it ends (section 5.1)."""
    most = (1 << bits) - 1
    number = block[at] & most
    at += 1
    if number < most:
        return number, at
    for shift in range(0, 28, 7):
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if not byte & 0x80:
            return number, at
    raise HpackError("a number too large")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    is_coded = block[at] & 0x80
    length, at = _number(block, at, 7)
    end = at + length
    if end > len(block):
        raise HpackError("the block ends too early")
    text = block[at:end]
    return decoded(text) if is_coded else text, end


def literal(name: bytes, value: bytes) -> bytes:
    """Return a field as no table has to know it: not indexed, not coded. Name and value below 127 bytes, or ValueError."""
    if max(len(name), len(value)) >= 127:
        raise ValueError("too long for one byte of length")
    return b"\0%c%b%c%b" % (len(name), name, len(value), value)

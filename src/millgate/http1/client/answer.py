"""What llhttp leaves open in an answer's head: one framing only, and nothing of this hop passed on."""

from collections.abc import Sequence
from typing import Final

from millgate.http1.client.contract import AnswerHead
from millgate.http1.wire.fields import HEAD_END, HOP_BY_HOP, MOST_LENGTH_DIGITS, Pair, listed, stays_open

_DROPPED: Final = HOP_BY_HOP | {b"content-length", b"date"}
_HIGHEST_STATUS: Final = 599
"""llhttp takes any three digits; beyond the five classes of RFC 9110 section 15 no status means anything to a client."""


class ProtocolViolationError(Exception):
    """The engine's bytes are no HTTP/1.1 that this client accepts."""


def read_answer(status: int, version: bytes, fields: Sequence[Pair]) -> tuple[AnswerHead, bool, bool]:
    """Check the framing of a final answer and strip what belongs to the connection; raise ProtocolViolationError.

    Returns the head, whether the body is chunked (without a length and chunks only the close ends it), and whether
    the connection may be used again.
    """
    if status > _HIGHEST_STATUS:
        raise ProtocolViolationError("answer with a status beyond 599")
    named = dict(fields)
    length = _length(named[b"content-length"]) if b"content-length" in named else None
    # What all Transfer-Encoding fields say together: several are one list (RFC 9110 section 5.3).
    codings = b", ".join(value for name, value in fields if name == b"transfer-encoding")
    chunked = b"transfer-encoding" in named and _chunked(codings, version)
    if chunked and length is not None:
        raise ProtocolViolationError("answer with both Content-Length and Transfer-Encoding")
    dropped = _DROPPED
    if b"connection" in named:
        dropped = dropped.union(*(listed(value) for name, value in fields if name == b"connection"))
    headers = [pair for pair in fields if pair[0] not in dropped]
    keep_alive = version == b"HTTP/1.1" and stays_open(fields, named)
    return AnswerHead(status, headers, length), chunked, keep_alive


def _length(value: bytes) -> int:
    if not value.isdigit() or len(value) > MOST_LENGTH_DIGITS:
        raise ProtocolViolationError("answer with a Content-Length that is no number")
    return int(value)


def _chunked(value: bytes, version: bytes) -> bool:
    if version != b"HTTP/1.1" or value.lower() != b"chunked":
        raise ProtocolViolationError("answer with a Transfer-Encoding other than chunked on HTTP/1.1")
    return True


class UnfinishedHead:
    """Keeps pieces and looks at each byte once or twice, not again with every piece that follows."""

    def __init__(self) -> None:
        self._raw = bytearray()

    def __len__(self) -> int:
        return len(self._raw)

    def clear(self) -> None:
        """Forget every piece."""
        self._raw.clear()

    def keep(self, data: bytes) -> None:
        """Keep one more piece; raise ProtocolViolationError for what cannot become a head."""
        raw = self._raw
        begin = len(raw) - 1 if raw.endswith(b"\r") else len(raw)
        raw += data
        if not raw.startswith(b"HTTP/1."[: len(raw)]):
            raise ProtocolViolationError("answer does not begin with an HTTP/1 status line")
        if raw.count(b"\n", begin) != raw.count(b"\r\n", begin):
            raise ProtocolViolationError("answer head with lines that do not end in CR LF")

    def joined(self, data: bytes, most_bytes: int) -> bytes:
        """Return all pieces and these bytes once they hold a whole head or are too many for one; else keep them.

        No bytes come back, and ProtocolViolationError may be raised, while the end is still to come.
        """
        raw = self._raw
        seam = bytes(raw[1 - len(HEAD_END) :]) + data
        if seam.find(HEAD_END) < 0 and len(raw) + len(data) <= most_bytes:
            self.keep(data)
            return b""
        whole = bytes(raw) + data
        raw.clear()
        return whole

"""The pieces of an answer's head whose end is still to come: an engine may send it byte by byte."""

from millgate.http1.client.answer import ProtocolViolationError
from millgate.http1.wire.fields import HEAD_END


class UnfinishedHead:
    """Keeps pieces and looks at each byte once or twice, not again with every piece that follows."""

    __slots__ = ("_raw",)

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

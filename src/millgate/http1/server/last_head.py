"""The last head of a connection, to be taken again when the next request repeats it but for its length."""

from typing import Final

from millgate.http1.client.repeats import Cut, cut_at_length
from millgate.http1.server.contract import RequestHead

_DIGITS_ROOM: Final = 16
"""How much longer a head may be than one that it repeats, generously: its Content-Length may have more digits."""


class LastHead:
    """One connection's last plain head: HTTP/1.1, kept alive, with a body of known length, and nothing expected."""

    def __init__(self) -> None:
        self._cut: Cut | None = None
        self._head: RequestHead | None = None
        self._digits = b""
        self._length = 0

    def __bool__(self) -> bool:
        return self._cut is not None

    def forget(self) -> None:
        """Keep nothing; a head may hold a credential."""
        self._cut = self._head = None

    def remember(
        self, head: RequestHead, block: bytes, lines: list[bytes], opening_bytes: int, most_bytes: int
    ) -> None:
        """Keep a plain head whose bytes are `block`, if it would be below `most_bytes` with any length."""
        self.forget()
        if head.content_length and len(block) < most_bytes - _DIGITS_ROOM:
            self._cut = cut = cut_at_length(block, opening_bytes, lines, head.headers)
            self._head = head
            self._length = head.content_length
            self._digits = head.headers[cut.position][1] if cut is not None else b""

    def again(self, data: bytes, begin: int) -> tuple[RequestHead, int, int] | None:
        """Return the head that begins here, its length and its end, if it is the last one with another length."""
        cut, head = self._cut, self._head
        if cut is None or head is None or (found := cut.match(data, begin)) is None:
            return None
        digits, stop = found
        if digits != self._digits:
            length = int(digits)
            if not length:
                return None
            self._head = head = _with_length(head, cut.position, digits, length)
            self._digits, self._length = digits, length
        return head, self._length, stop


def _with_length(head: RequestHead, position: int, digits: bytes, length: int) -> RequestHead:
    pair = (b"content-length", digits)
    fields = [*head.headers]
    fields[position] = pair
    named = {**(head.named or {}), pair[0]: digits}
    return RequestHead(head.method, head.target, head.path, fields, length, head.peer, named, head.notes)

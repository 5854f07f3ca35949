"""The bytes of an answer's head: status lines and the date are made once a second, not once an answer."""

import http
import time
from email.utils import formatdate
from typing import Final

from millgate.http1.server.contract import Headers, RefusedRequest
from millgate.http1.wire.fields import ANSWER_RESERVED, Lines, header_lines

_PHRASES: Final = {status.value: status.phrase for status in http.HTTPStatus}

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
CLOSE: Final = b"connection: close\r\n"


def _lines(headers: Headers | Lines) -> Lines:
    return headers if isinstance(headers, bytes) else header_lines(headers, ANSWER_RESERVED)


class ResponseHeads:
    """Builds heads; `refresh` moves the date, the sweep calls it."""

    def __init__(self) -> None:
        self._openings: dict[int, bytes] = {}
        self._second = 0

    def refresh(self) -> None:
        """Forget last second's status lines."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._openings.clear()

    def opening(self, status: int) -> bytes:
        """Return the status line and the Date header."""
        opening = self._openings.get(status)
        if opening is None:
            if not 200 <= status <= 599:
                raise ValueError(f"status is {status}, a final answer has 200 to 599")
            phrase = _PHRASES.get(status, "")
            date = formatdate(self._second, usegmt=True)
            opening = f"HTTP/1.1 {status} {phrase}\r\ndate: {date}\r\n".encode("ascii")
            self._openings[status] = opening
        return opening

    def sized(self, status: int, headers: Headers | Lines, length: int, close: bool) -> bytes:
        """Return the whole head of an answer of `length` body bytes."""
        opening = self._openings.get(status) or self.opening(status)
        lines = headers if isinstance(headers, bytes) else header_lines(headers, ANSWER_RESERVED)
        ending = b"connection: close\r\n\r\n" if close else b"\r\n"
        return b"%b%bcontent-length: %d\r\n%b" % (opening, lines, length, ending)

    def last(self, refusal: RefusedRequest) -> bytes:
        """Return a whole refusal, the last answer of its connection."""
        head = self.sized(refusal.status, refusal.headers, len(refusal.body), True)
        return head + refusal.body

    def bodiless(self, status: int, headers: Headers | Lines, *, close: bool) -> bytes:
        """Return the whole of an answer that has no body by its status (204, 304)."""
        return b"%b%b%b\r\n" % (self.opening(status), _lines(headers), CLOSE if close else b"")

    def chunked(self, status: int, headers: Headers | Lines, *, close: bool) -> bytes:
        """Return the whole head of an answer in chunks."""
        return b"%b%btransfer-encoding: chunked\r\n%b\r\n" % (
            self.opening(status),
            _lines(headers),
            CLOSE if close else b"",
        )

    def until_close(self, status: int, headers: Headers | Lines) -> bytes:
        """Return the head of an answer to HTTP/1.0 that the close of the connection ends."""
        return b"%b%b%b\r\n" % (self.opening(status), _lines(headers), CLOSE)

"""The heads of a request's chunks: a chunk that can never fit is refused at once, and so is a flood of framing."""

from collections.abc import Callable
from functools import partial
from typing import Final

from millgate.http1.server.framing import UnacceptableError
from millgate.http1.server.limits import ServerLimits

_OVERHEAD_BYTES: Final = 64 * 1024
_OVERHEAD_RATIO: Final = 8
"""A chunk of one byte costs six on the wire; what needs more than eight is a flood of framing, not a body."""

_ABSURD_BYTES: Final = 2**63
"""Beyond what a signed integer holds: servers disagree about what such a number is."""
_TAIL_BYTES: Final = 64
"""What is kept of the wire from one read to the next: the head of a chunk may come in two."""


def body_too_large(limits: ServerLimits) -> UnacceptableError:
    """Say that a body is over the cap."""
    message = f"the request body is limited to {limits.body_bytes} bytes"
    return UnacceptableError(413, "body_too_large", message)


class ChunkHeads:
    """Follows one connection's chunks beside llhttp, which calls `on_header` and `on_complete`.

    `parts` are the pieces of the body as llhttp finds them; a head puts an empty one among them. `tail` is the end
    of what has been read of the present body.
    """

    __slots__ = ("_ends", "_limits", "_open", "_parts", "_wire_bytes", "on_complete", "on_header", "tail")

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
            raise body_too_large(self._limits)

    def check_overhead(self, body_bytes: int) -> None:
        """Raise UnacceptableError if so many body bytes cannot have needed what has come on the wire."""
        if self._wire_bytes > _OVERHEAD_BYTES + _OVERHEAD_RATIO * body_bytes:
            raise UnacceptableError(400, "invalid_request", "more chunk framing than body")

"""From bytes to lines: a turn of them at a time, within one bound, booked, and wiped when it is over."""

from collections.abc import Iterator

from millgate.http1.server.budget import Share
from millgate.servers.line.contract import LineLimits


class LineTooLongError(Exception):
    """A line is longer than the bound."""


class NoRoomError(Exception):
    """The budget has no room for what is kept of lines."""


class LineIntake:
    """Keeps what has come and was not taken, lines of at most `most_bytes`; a line end is searched for once.

    While `pending`, lines may be left for another turn.
    """

    def __init__(self, limits: LineLimits, share: Share, most_bytes: int) -> None:
        self._limits = limits
        self._share = share
        self._data = bytearray()
        self._searched = 0
        self._booked_bytes = 0
        self.most_bytes = most_bytes
        self.pending = False

    def __len__(self) -> int:
        return len(self._data)

    def feed(self, data: bytes) -> None:
        """Take bytes as they came; a turn comes next."""
        self._data += data

    def turn(self) -> Iterator[bytes]:
        """Yield whole lines, without their ends, as many as belong to one turn; raises LineTooLongError, NoRoomError."""
        self.pending = False
        left_lines, left_bytes = self._limits.turn_lines, self._limits.turn_bytes
        while left_lines > 0 and left_bytes > 0:
            line = self._next()
            if line is None:
                break
            left_lines -= 1
            left_bytes -= len(line)
            yield line
        else:
            self.pending = bool(self._data)
        self._book()

    def _next(self) -> bytes | None:
        kept = self._data
        end = kept.find(b"\n", self._searched)
        size = len(kept) if end < 0 else end
        if size > self.most_bytes:
            raise LineTooLongError
        if end < 0:
            self._searched = size
            return None
        line = bytes(kept[:end])
        del kept[: end + 1]
        self._searched = 0
        return line.removesuffix(b"\r")

    def _book(self) -> None:
        wanted_bytes = max(0, len(self._data) - self._limits.unbooked_bytes)
        more_bytes = wanted_bytes - self._booked_bytes
        if more_bytes > 0 and not self._share.reserve(more_bytes):
            raise NoRoomError
        if more_bytes < 0:
            self._share.release(-more_bytes)
        self._booked_bytes = wanted_bytes

    def wipe(self) -> None:
        """Overwrite and forget what is kept, and give the booking back."""
        self._data[:] = bytes(len(self._data))
        self._data.clear()
        self._searched = 0
        self.pending = False
        self._book()

"""From bytes to lines, within one bound and wiped when it is over."""

from collections.abc import Iterator


class LineTooLongError(Exception):
    """A line is longer than the bound."""


class LineIntake:
    """Keeps at most one unfinished line; a line end is searched for once."""

    __slots__ = ("_data", "_most_bytes", "_searched")

    def __init__(self, most_bytes: int) -> None:
        self._data = bytearray()
        self._most_bytes = most_bytes
        self._searched = 0

    def __len__(self) -> int:
        return len(self._data)

    def lines(self, data: bytes) -> Iterator[bytes]:
        """Take bytes and yield every line that is now whole, without its end; raises LineTooLongError."""
        kept = self._data
        kept += data
        while True:
            end = kept.find(b"\n", self._searched)
            size = len(kept) if end < 0 else end
            if size > self._most_bytes:
                raise LineTooLongError
            if end < 0:
                self._searched = size
                return
            line = bytes(kept[:end])
            del kept[: end + 1]
            self._searched = 0
            yield line.removesuffix(b"\r")

    def wipe(self) -> None:
        """Overwrite and forget what is kept."""
        self._data[:] = bytes(len(self._data))
        self._data.clear()
        self._searched = 0

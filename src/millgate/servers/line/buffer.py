"""Bytes of one job under the common budget, wiped when they are no longer needed."""

from typing import Final, Protocol

_WIPE_STEP: Final = 64 * 1024


class Reserves(Protocol):
    """Where bytes are booked."""

    def reserve(self, size_bytes: int) -> bool:
        """Take so many if they fit."""

    def release(self, size_bytes: int) -> None:
        """Give them back."""


class Buffer:
    """Grows piece by piece; what is kept is booked before.

    Wiping overwrites what is still here: a copy that the allocator left behind while the buffer grew, or that is
    on its way to an engine, is beyond reach.
    """

    __slots__ = ("_booked", "_budget", "data")

    def __init__(self, budget: Reserves) -> None:
        self._budget = budget
        self._booked = 0
        self.data = bytearray()

    def __len__(self) -> int:
        return len(self.data)

    def sibling(self) -> "Buffer":
        """Return an empty one whose bytes are booked where these are."""
        return Buffer(self._budget)

    def book(self, size_bytes: int) -> bool:
        """Book room for so many bytes in all, if the budget has it; return whether it is booked."""
        more_bytes = size_bytes - self._booked
        if more_bytes > 0 and self._budget.reserve(more_bytes):
            self._booked = size_bytes
        return self._booked >= size_bytes

    def append(self, piece: bytes) -> bool:
        """Keep a piece if the budget has room for it; return whether it did."""
        if not self.book(len(self.data) + len(piece)):
            return False
        self.data += piece
        return True

    def wipe(self) -> None:
        """Overwrite, forget, and give the booking back; again is harmless."""
        size = len(self.data)
        zeros = bytes(min(size, _WIPE_STEP))
        view = memoryview(self.data)
        for begin in range(0, size, _WIPE_STEP):
            end = min(size, begin + _WIPE_STEP)
            view[begin:end] = zeros[: end - begin]
        view.release()
        self.data.clear()
        self._budget.release(self._booked)
        self._booked = 0

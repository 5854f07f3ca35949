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
    """Grows piece by piece, each booked before it is kept.

    Wiping overwrites what is still here: a copy that the allocator left behind while the buffer grew, or that is
    on its way to an engine, is beyond reach.
    """

    __slots__ = ("_budget", "data")

    def __init__(self, budget: Reserves) -> None:
        self._budget = budget
        self.data = bytearray()

    def __len__(self) -> int:
        return len(self.data)

    def sibling(self) -> "Buffer":
        """Return an empty one whose bytes are booked where these are."""
        return Buffer(self._budget)

    def append(self, piece: bytes) -> bool:
        """Keep a piece if the budget has room for it; return whether it did."""
        if not self._budget.reserve(len(piece)):
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
        self._budget.release(size)

"""Bytes of one job under the common budget, wiped when they are no longer needed."""

from typing import Final

from millgate.http1.server.budget import Share

_WIPE_STEP: Final = 64 * 1024


class Buffer:
    """Grows piece by piece, each booked before it is kept.

    Wiping overwrites what is still here: a copy that the allocator left behind while the buffer grew, or that is
    on its way to an engine, is beyond reach.
    """

    def __init__(self, share: Share) -> None:
        self._share = share
        self._settled = 0
        self.data = bytearray()

    def __len__(self) -> int:
        return len(self.data)

    def append(self, piece: bytes, rest_bytes: int = 0) -> bool:
        """Keep a piece, of what has so much to come, if the budget takes it; return whether it did."""
        if not self._share.reserve(len(piece), rest_bytes):
            return False
        self.data += piece
        return True

    def settle(self) -> None:
        """Say that it is whole: it waits for no room any more."""
        self._settled = len(self.data)
        self._share.settle(self._settled)

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
        self._share.settle(-self._settled)
        self._settled = 0
        self._share.release(size)

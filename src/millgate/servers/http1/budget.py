"""One bound over all request bodies being received and held (INV-5)."""

from typing import Final

DEFAULT_BUDGET_BYTES: Final = 256 * 1000 * 1000
"""The bound of INV-5: 256 MB over bodies being received and held."""


class ByteBudget:
    """Counts bytes against one bound; shared by every server of a process.

    Whoever reserves releases exactly what it reserved, at the latest when its exchange ends.
    """

    __slots__ = ("held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int = DEFAULT_BUDGET_BYTES) -> None:
        if limit_bytes < 0:
            raise ValueError(f"limit_bytes is {limit_bytes}, the least is 0")
        self.limit_bytes = limit_bytes
        self.held_bytes = 0

    def reserve(self, size_bytes: int) -> bool:
        """Take this many bytes if they fit; return whether they did."""
        if self.held_bytes + size_bytes > self.limit_bytes:
            return False
        self.held_bytes += size_bytes
        return True

    def release(self, size_bytes: int) -> None:
        """Give back what was reserved."""
        self.held_bytes -= size_bytes
        assert self.held_bytes >= 0, "more was released than reserved"

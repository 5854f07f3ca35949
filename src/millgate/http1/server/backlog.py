"""What a client sends out of its turn: kept unparsed within a bound, or dropped and counted."""

from typing import Final

from millgate.http1.server.contract import ServerLimits

_FLOOD_BYTES: Final = 1024 * 1024
"""How much may come behind a request being answered before the connection is cut: dropping it costs time too."""


class Backlog:
    """One connection's pipelined bytes, `held` while their turn has not come."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self.held = bytearray()
        self._dropped_bytes = 0

    def hold(self, data: bytes) -> bool:
        """Keep these bytes and return True; beyond the bound drop them all and return False."""
        if len(self.held) + len(data) <= self._limits.kept_pipelined_bytes:
            self.held += data
            return True
        self.clear()
        return False

    def take(self) -> bytes:
        """Return all that is kept and keep nothing."""
        data = bytes(self.held)
        self.held.clear()
        return data

    def clear(self) -> None:
        """Drop what is kept."""
        self.held.clear()

    def drop(self, size_bytes: int) -> None:
        """Count bytes that are read and not wanted."""
        self._dropped_bytes += size_bytes

    def lingered(self, *, in_body: bool) -> bool:
        """Whether a client that has got its last answer, perhaps to a body that goes on, has sent more than is read after it."""
        return self._dropped_bytes > (self._limits.refused_bytes if in_body else self._limits.linger_bytes)

    @property
    def flooded(self) -> bool:
        """Whether so much was dropped that the connection is not worth keeping."""
        return self._dropped_bytes > _FLOOD_BYTES

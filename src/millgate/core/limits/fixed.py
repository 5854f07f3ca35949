"""A limit that stays where it was put: the hard cap."""

from millgate.core.limits.base import LimitReading, checked_cap


class FixedLimit:
    """A constant number of streams."""

    def __init__(self, streams: int) -> None:
        self._streams = checked_cap(streams)

    def current(self) -> int:
        """Return the constant."""
        return self._streams

    def observe(self, _reading: LimitReading) -> None:
        """Learn nothing."""

    def adopt(self, hard_cap: int) -> None:
        """Become this constant."""
        self._streams = checked_cap(hard_cap)

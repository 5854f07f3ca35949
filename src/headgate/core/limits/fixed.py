"""A limit that stays where it was put: the hard cap."""


class FixedLimit:
    """A constant number of streams."""

    __slots__ = ("_streams",)

    def __init__(self, streams: int) -> None:
        if streams < 1:
            raise ValueError(f"max_inflight must be at least 1, not {streams}")
        self._streams = streams

    def current(self) -> int:
        """Return the constant."""
        return self._streams

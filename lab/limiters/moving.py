"""What the baselines share: a limit that a rule moves between a minimum and its hard cap."""

from abc import ABC, abstractmethod

from millgate.core.limits.gate import LimitReading


class MovingLimit(ABC):
    """A limit that begins at `start`; its hard cap wins over every rule."""

    def __init__(self, hard_cap: int, start: int, minimum: int = 1) -> None:
        self._hard_cap = hard_cap
        self._minimum = minimum
        self._move_to(float(start))

    def current(self) -> int:
        """Return the limit in force: whole streams, at least 1, never above the hard cap."""
        return int(self._level)

    def adopt(self, hard_cap: int) -> None:
        """Take a new hard cap; a limit above it falls to it at once."""
        self._hard_cap = hard_cap
        self._move_to(self._level)

    @abstractmethod
    def observe(self, reading: LimitReading) -> None:
        """Learn from one window."""

    def _move_to(self, level: float) -> None:
        self._level = min(float(self._hard_cap), max(float(self._minimum), level))

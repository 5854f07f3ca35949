"""What adaptive limits share: their range, how they are cut, and the signs of overload."""

from abc import ABC, abstractmethod

from millgate.core.limits.gate import LimitReading, checked_cap
from millgate.core.measure import UPPER_SHARE

# One cut of a tenth for overload, at most once a window (algorithm G2; Netflix's AIMD has the same ratio), and overload is also an
# engine that keeps more than this share of its KV cache busy, or so many waiting before it (G2).
OVERLOAD_RATIO = 0.9
MOST_WAITING = 5


class AdaptiveLimit(ABC):
    """A limit that begins at `start` and moves between `minimum` and its hard cap, which wins; ValueError below 1."""

    def __init__(self, hard_cap: int, start: int, minimum: int = 1) -> None:
        if minimum < 1:
            raise ValueError(f"minimum must be at least 1, not {minimum}")
        if start < 1:
            raise ValueError(f"start must be at least 1, not {start}")
        self._hard_cap = checked_cap(hard_cap)
        self._minimum = minimum
        self._move_to(float(start))

    def current(self) -> int:
        """Return the limit in force: whole streams, at least 1, never above the hard cap."""
        return int(self._level)

    def adopt(self, hard_cap: int) -> None:
        """Take a new hard cap; a limit above it falls to it at once, one below it may grow from now on."""
        self._hard_cap = checked_cap(hard_cap)
        self._move_to(self._level)

    @abstractmethod
    def observe(self, reading: LimitReading) -> None:
        """Learn from one window."""

    def _move_to(self, level: float) -> None:
        self._level = min(float(self._hard_cap), max(float(self._minimum), level))

    def _cut(self, reading: LimitReading, ratio: float) -> None:
        """Fall by this ratio, counted from what ran: a limit would end far too low if it fell while old streams run."""
        ran = max(self._level, float(reading.max_inflight))
        self._move_to(min(self._level, ratio * ran))


def overloaded(reading: LimitReading) -> bool:
    """Return whether this window shows overload whatever its TPOT: errors, a full KV cache, a queue inside."""
    # A tenth of what ended failed. A cut for any error, as G2 has it, lets two errors in a hundred that have nothing to do
    # with load keep a limit at its minimum.
    ended = reading.failures + reading.answers
    if reading.failures and reading.answers <= UPPER_SHARE * ended:
        return True
    return (reading.kv_share or 0.0) > OVERLOAD_RATIO or (reading.waiting or 0) > MOST_WAITING

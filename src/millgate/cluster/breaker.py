"""A store that does not answer is asked once in a while, not at every renewal."""

from collections.abc import Callable
from typing import Final

FAILURES_TO_OPEN: Final = 3
"""One lost call of ten (row 53 of the faults) opens a breaker of three once in a thousand calls."""


class StoreBreaker:
    """Opens after three failures in a row; then one call in `pause_s` may pass, until one succeeds. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float], pause_s: float) -> None:
        self._clock = clock
        self._pause_s = pause_s
        self._failures = 0
        self._next_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether calls are held back."""
        return self._failures >= FAILURES_TO_OPEN

    def allows(self) -> bool:
        """Return whether a call may be made now; an open breaker allows one, and the next a pause later."""
        if not self.is_open:
            return True
        now = self._clock()
        if now < self._next_at:
            return False
        self._next_at = now + self._pause_s
        return True

    def succeeded(self) -> None:
        """Close it."""
        self._failures = 0

    def failed(self) -> None:
        """Count a failure; the third in a row opens it."""
        self._failures += 1
        if self._failures == FAILURES_TO_OPEN:
            self._next_at = self._clock() + self._pause_s

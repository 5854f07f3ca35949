"""The number, apart from the object that counts against it.

An algorithm that decides *how many* knows nothing of permits; the gate that hands out permits knows nothing of
how its number came about (the split of Netflix's Limit and Limiter).
"""

from typing import Protocol


class Limit(Protocol):
    """How many streams one engine may run at once."""

    def current(self) -> int:
        """Return the limit in force, at least 1."""

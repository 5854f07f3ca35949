"""Small running statistics."""

from typing import Final

UPPER_Z: Final = 1.2816
"""One-sided 90 % point of the normal law: what is told of a wait holds nine times in ten (QLM's upper quantile)."""

"""The plain rules that stand in the place of refinements."""

from typing import Any

from millgate.core.tickets import ClientKind


def nothing(*_arguments: Any, **_named: Any) -> None:
    """Do nothing."""


def zero(*_arguments: Any) -> float:
    """Return 0."""
    return 0.0


def one(*_arguments: Any) -> float:
    """Return 1."""
    return 1.0


def given(_reading: Any, tokens: int, _now: float) -> int:
    """Count a prompt as unread until its first token."""
    return tokens


def wait_alone(_draft: Any, wait_s: float, late_s: float, _now: float) -> tuple[float, float, float]:
    """Return the wait as if no shorter work came."""
    return wait_s, late_s, wait_s + late_s


def aim_at_the_mean(expected_s: float, _late_s: float) -> float:
    """Ask a client back when its permit is expected."""
    return expected_s


def told_first(_draft: Any) -> int:
    """Take every client for one that was told for the first time."""
    return ClientKind.FIRST

"""The plain rules that stand in the place of refinements."""

from typing import Any

from millgate.core.governor.placement import Placement, _cheapest, _found
from millgate.core.routing.working_set import WorkingSets, _Kind
from millgate.core.state.attempt import Request
from millgate.core.state.engine import Engine
from millgate.core.tickets import ClientKind


def nothing(*_arguments: Any, **_named: Any) -> None:
    """Do nothing."""


def zero(*_arguments: Any) -> float:
    """Return 0."""
    return 0.0


def one(*_arguments: Any) -> float:
    """Return 1."""
    return 1.0


def never(*_arguments: Any) -> bool:
    """Return False."""
    return False


def of_one_kind(sets: WorkingSets, lane: str, *, returns: bool, is_named: bool = True) -> Any:  # noqa: ARG001
    """Return the one kind that all sessions of a lane are of."""
    return sets._kinds.setdefault((lane, False, False), _Kind())  # noqa: SLF001  # it stands in for a method


def alone(
    place: Placement, chosen: Engine, request: Request, engines: Any, held: Any, turns: Any, now: float
) -> Any:
    """Return the cheapest engine for a request, in time or not."""
    compared = place._compared(chosen, request, engines, held, turns, now)  # noqa: SLF001  # it stands in for a method
    return _found(_cheapest(chosen, request, compared, held, now), request, compared, held, now)


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

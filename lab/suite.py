"""A suite: cases by name that refinements are measured on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Shown = Mapping[str, float]
Run = Callable[[int], Shown]


@dataclass(frozen=True, slots=True)
class Suite:
    """Cases by name, each run once for each of so many seeds."""

    what: str
    seeds: int
    cases: Mapping[str, Run]

"""The contract of a router: which of several engines takes this attempt."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Candidate(NamedTuple):
    """One engine that has room now, and what it would cost there; seconds."""

    position: int
    expected_ttft_s: float
    expected_tpot_s: float


class Router(Protocol):
    """Chooses among candidates; a pure function of what it is shown."""

    def choose(self, candidates: Sequence[Candidate]) -> Candidate:
        """Return one of the candidates; there is at least one."""

"""What an order is shown in its tests."""

from dataclasses import dataclass
from math import isnan, nan


@dataclass(eq=False)
class Waiting:
    """One queued attempt, as a queue sees it."""

    attempt: int
    arrival_number: int
    first_seen: float
    lane_deadline: float
    deadline: float
    prompt_tokens: int
    output_tokens: int
    body_bytes: int
    engine_s: float = 0.0
    tenant: str = ""
    weight: float = 1.0
    turn: int = 0
    as_old_as: float = nan

    def __post_init__(self) -> None:
        """Rank it by its own age where no older one is named that it was put before."""
        if isnan(self.as_old_as):
            self.as_old_as = self.first_seen

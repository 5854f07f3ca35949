"""What an order is shown in its tests."""

from dataclasses import dataclass


@dataclass(eq=False)
class Waiting:
    """One held attempt, as a queue sees it."""

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

"""What waits, and the contract of an order: who is next.

A queue is bounded by its lane (count, tokens, bytes, predicted wait); the order only says who goes first and how
much is ahead of somebody. Every order passes the same contract tests.
"""

from collections.abc import Iterator
from typing import Protocol


class Held(Protocol):
    """What an order needs to know of one held attempt; all times absolute core seconds."""

    attempt: int
    arrival_number: int
    first_seen: float
    lane_deadline: float
    deadline: float
    prompt_tokens: int
    output_tokens: int
    body_bytes: int


class Order(Protocol):
    """Held attempts of one lane, in the order in which they will be admitted."""

    tokens: int
    body_bytes: int

    def add(self, held: Held) -> int:
        """Put an attempt in its place and return how many are ahead of it."""

    def remove(self, held: Held) -> None:
        """Take this attempt out, wherever it stands; it must be in."""

    def head(self) -> Held | None:
        """Return who is next, without taking it out."""

    def ahead_of(self, held: Held) -> int:
        """Return how many would be admitted before this one, whether or not it is in."""

    def __len__(self) -> int:
        """Return how many wait."""

    def __iter__(self) -> Iterator[Held]:
        """Yield everything that waits, next first."""

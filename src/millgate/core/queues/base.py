"""What waits, and the contract of an order: which attempt is next.

A queue is bounded by its lane (count, tokens, bytes, predicted wait); the order says which attempt goes first and how many
are ahead of one. Every order passes the same contract tests.
"""

from collections.abc import Iterator
from typing import Protocol


class Queued(Protocol):
    """What an order needs to know of one queued attempt; all times absolute core seconds.

    Nothing here may change between `add` and `remove`, nor `tenant`, `weight` and the two token counts between
    `started` and `settle`. `as_old_as` is the age by which it is ranked, equal ones by `turn`: `first_seen`, unless
    its appointment stands before an older one (`tickets`). `weight` is the tenant's, above 0, usually 1.0; `engine_s` is the
    part of an engine's time that the whole answer is predicted to take, in seconds: what others lose by it.
    """

    attempt: int
    tenant: str
    weight: float
    arrival_number: int
    first_seen: float
    as_old_as: float
    turn: int
    lane_deadline: float
    deadline: float
    prompt_tokens: int
    output_tokens: int
    engine_s: float


class Order(Protocol):
    """Queued attempts of one lane, in the order in which they will be admitted."""

    def add(self, queued: Queued) -> None:
        """Put an attempt in its place."""

    def remove(self, queued: Queued) -> None:
        """Take this attempt out, wherever it stands; it must be in."""

    def started(self, queued: Queued, now: float) -> None:
        """Take note that this attempt was admitted, right after its `remove`, or at once without having waited."""

    def settle(self, queued: Queued, prompt_tokens: int, output_tokens: int) -> None:
        """Take note of the true size of an attempt that was `started`; called at most once, at its end."""

    def head(self) -> Queued | None:
        """Return the next attempt, without taking it out."""

    def last(self) -> Queued:
        """Return the attempt that would be admitted last, as far as is foreseen, without taking it out; some must wait."""
        raise NotImplementedError

    def ahead_of(self, queued: Queued) -> int:
        """Return how many would be admitted before this one, whether or not it is in.

        0 exactly when it is, or would be, the head; never more than wait. Beyond that an order may estimate,
        and says so.
        """

    def __len__(self) -> int:
        """Return how many wait."""

    def __iter__(self) -> Iterator[Queued]:
        """Yield everything that waits, next first."""

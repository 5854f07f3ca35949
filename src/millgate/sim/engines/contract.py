"""What the world asks of an engine, and what an engine tells the world."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from millgate.core.words import FailureKind, Sent
from millgate.sim.jobs import Job


class GaugeReading(NamedTuple):
    """An engine's own gauges; None for what it does not tell."""

    running: int
    waiting: int
    kv_share: float | None = None


class EngineTotals(NamedTuple):
    """What an engine has done since the start: tokens computed, and how much of the prompts its prefix cache had.

    `queried_tokens` are the prompts that were looked up and `hit_tokens` what was found and not computed.
    """

    prompt_tokens: int
    output_tokens: int
    preemptions: int
    queried_tokens: int = 0
    hit_tokens: int = 0


def added_up(totals: Sequence[EngineTotals]) -> EngineTotals:
    """Return what several engines have done together."""
    return EngineTotals(*[sum(each, 0) for each in zip(*totals, strict=True)])


class Reports(Protocol):
    """The listener to an engine's attempts."""

    def first_token(self, attempt: int) -> None:
        """The first token of this answer is out."""

    def finished(self, attempt: int, output_tokens: int, cached_tokens: int | None = None) -> None:
        """The answer is whole; its engine had so much of its prompt in its cache, None where it has none."""

    def failed(self, attempt: int, kind: FailureKind, sent: Sent, hint_s: float | None) -> None:
        """The engine does not (or no longer) work for this attempt."""


class Station(Protocol):
    """One engine: it starts attempts, is told of hang-ups, and shows its gauges."""

    name: str

    def start(self, attempt: int, job: Job) -> None:
        """Run this attempt from now on."""

    def hang_up(self, attempt: int) -> None:
        """Its client has left; how long the engine works on in vain is the engine's affair."""

    def produced(self, attempt: int) -> int:
        """Output tokens that it has made so far for a running attempt, 0 for one that it does not know."""

    def read(self) -> GaugeReading:
        """Return the gauges as of now."""

    def totals(self) -> EngineTotals:
        """Return what it has done so far."""

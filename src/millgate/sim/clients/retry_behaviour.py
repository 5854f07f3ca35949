"""What a client does after a refusal, a failure, or its own impatience: come back after a while, or not at all.

The SDK's numbers are those of openai 3.52 and anthropic 2.11 as read and measured. They are two retries, 0.5 s doubling up
to 8 s, each cut by up to a quarter at random. A hint up to two minutes is taken to the letter and without jitter.
`x-should-retry: false` ends it.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from millgate.core.decisions import Yield
from millgate.sim.randomness import Draws

SDK_RETRIES = 2
_SDK_FIRST_S, _SDK_LONGEST_S, _SDK_JITTER = 0.5, 8.0, 0.25
_SDK_LONGEST_HINT_S = 120.0


class RetryBehaviour(Protocol):
    """How one kind of client returns; `attempts` counts the attempts made so far, at least 1.

    `labels` says whether its retries carry `x-stainless-retry-count`.
    """

    @property
    def labels(self) -> bool:
        """Whether retries are labelled."""

    def after_yield(self, decision: Yield, attempts: int, dice: Draws) -> float | None:
        """Return after how many seconds it tries again, None for giving up."""

    def after_failure(self, attempts: int, dice: Draws) -> float | None:
        """The same after an engine's failure or its own time-out."""


@dataclass(frozen=True, slots=True)
class Sdk:
    """The official SDKs: a few retries, the hint where there is one, else exponential back-off."""

    retries: int = SDK_RETRIES
    labels: bool = True

    def after_yield(self, decision: Yield, attempts: int, dice: Draws) -> float | None:
        """Return the hint while tries are left and the server does not say that it is useless."""
        if attempts > self.retries or not decision.retry:
            return None
        if 0.0 < decision.retry_after_s <= _SDK_LONGEST_HINT_S:
            return decision.retry_after_s
        return self.after_failure(attempts, dice)

    def after_failure(self, attempts: int, dice: Draws) -> float | None:
        """Return the back-off while tries are left."""
        if attempts > self.retries:
            return None
        pause_s = min(_SDK_FIRST_S * 2.0 ** (attempts - 1), _SDK_LONGEST_S)
        return float(pause_s * (1.0 - _SDK_JITTER * dice.next()))


NEVER: Final = Sdk(retries=0, labels=False)
"""Takes the first answer for the last."""


class Honouring(Sdk):
    """Comes back exactly when told, as often as it is told, and stays away when that is said to be useless; after a failure as an SDK does."""

    def after_yield(self, decision: Yield, attempts: int, dice: Draws) -> float | None:
        """Return the hint, or give up when told so."""
        del attempts, dice
        return decision.retry_after_s if decision.retry else None


@dataclass(frozen=True, slots=True)
class Refreshing:
    """A person at a page: presses refresh when tired or refused, with this chance, until out of temper. A loop without manners always does."""

    chance: float = 0.7
    most: int = 3
    pause_s: float = 1.0
    labels: bool = False

    def after_yield(self, decision: Yield, attempts: int, dice: Draws) -> float | None:
        """Press refresh, by chance, whatever the headers say."""
        del decision
        return self.after_failure(attempts, dice)

    def after_failure(self, attempts: int, dice: Draws) -> float | None:
        """Press refresh, by chance."""
        if attempts > self.most or (self.chance < 1.0 and dice.next() >= self.chance):
            return None
        return self.pause_s

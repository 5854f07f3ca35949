"""An engine that is somebody's account: its buckets and its breaker stand beside the gate (design section 4, step 5).

Everything sent there counts against the provider's limits whoever sent it, so the reservation is made at the permit
and not at the door.
"""

from headgate.core.events import Failed, QuotaReading
from headgate.core.governor.records import Attempt
from headgate.core.limits.breaker import Breaker, counts_against
from headgate.core.quotas.account import Account, Refusal
from headgate.core.quotas.amounts import Sizes
from headgate.core.settings import AccountSettings
from headgate.core.words import FailureKind


class Provider:
    """Says when an attempt may be sent to the account, and learns from what comes back."""

    __slots__ = ("_account", "_probing", "_refused_at", "breaker")

    def __init__(self, settings: AccountSettings, now: float) -> None:
        self._account = Account(settings, now)
        self._probing: int | None = None
        self._refused_at = float("-inf")
        self.breaker = Breaker()

    def wait_s(self, draft: Attempt, now: float, place: int = 1) -> float:
        """Return how long until the `place`-th attempt like this may be sent, 0 if now; infinite if never."""
        breaker_s = 0.0
        if not self.breaker.allows(now, self._probing is not None):
            breaker_s = max(0.1, (self.breaker.next_try_at or now) - now)
        return max(self._account.wait_s(*sizes_of(draft), now, place), breaker_s)

    def started(self, attempt: Attempt, now: float) -> None:
        """Reserve for an attempt that is being sent."""
        attempt.charged = self._account.take(*sizes_of(attempt), now)
        if self.breaker.is_open:
            self._probing = attempt.attempt

    def grew(self, attempt: Attempt, now: float) -> None:
        """Charge what has been produced so far."""
        if attempt.charged is not None:
            self._account.progress(attempt.charged, attempt.output_seen, now)

    def answered(self, attempt: Attempt, prompt_tokens: int | None, cached_tokens: int, now: float) -> None:
        """Settle by the real size; the answer also speaks for the provider's health."""
        self._settle(attempt, prompt_tokens, cached_tokens, attempt.output_seen, now)
        self._succeeded(attempt, now)

    def failed(self, attempt: Attempt, event: Failed, now: float) -> None:
        """Give back what a refusal did not use, and learn what it says."""
        if event.over_limit:
            self._settle(attempt, 0, 0, 0, now)
            self._account.refused(Refusal.LIMIT, event.hint_s, now, event.limit)
        else:
            self._settle(attempt, None, 0, attempt.output_seen, now)
            if counts_against(event.kind):
                self._account.refused(Refusal.OVERLOAD, event.hint_s, now)
        if not counts_against(event.kind):
            self._succeeded(attempt, now)
        elif not event.over_limit and not self._is_of_volley(attempt, event, now):
            self.breaker.failed(now, event.hint_s)
        self._probed(attempt)

    def _is_of_volley(self, attempt: Attempt, event: Failed, now: float) -> bool:
        """Return whether it was sent before an earlier 503 or 529 came back: those of one burst count as one failure."""
        if event.kind is not FailureKind.REFUSED:
            return False
        if attempt.admitted_at <= self._refused_at:
            return True
        self._refused_at = now
        return False

    def left(self, attempt: Attempt, now: float) -> None:
        """Settle for somebody who hung up: what was produced is charged."""
        self._settle(attempt, None, 0, attempt.output_seen, now)
        self._probed(attempt)

    def seen(self, reading: QuotaReading, now: float) -> None:
        """Learn from the headers of an answer."""
        self._account.seen(reading, now)

    def _settle(self, attempt: Attempt, prompt: int | None, cached: int, output: int, now: float) -> None:
        if attempt.charged is not None:
            self._account.settle(attempt.charged, prompt, cached, output, now)
            attempt.charged = None

    def _succeeded(self, attempt: Attempt, now: float) -> None:
        self.breaker.succeeded(now)
        self._probed(attempt)

    def _probed(self, attempt: Attempt) -> None:
        if self._probing == attempt.attempt:
            self._probing = None


def sizes_of(attempt: Attempt) -> Sizes:
    """Return what an attempt takes from quotas, over all its answers."""
    arrival = attempt.arrival
    most = None if arrival.max_tokens is None else arrival.max_tokens * arrival.answers
    return Sizes(attempt.prompt_tokens, attempt.output_tokens, most)

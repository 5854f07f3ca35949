"""An engine that is a provider account: its buckets and its breaker stand beside the gate (design section 4, step 5).

Everything sent there counts against the provider's limits, so the reservation is made at the permit
and not at the door.
"""

from millgate.core.events import Failed
from millgate.core.limits.breaker import BLAMELESS, FIRST_PAUSE_S as BREAKER_PAUSE_S, Breaker
from millgate.core.quotas.account import FIRST_PAUSE_S, Account
from millgate.core.quotas.bucket import Reservation, Sizes
from millgate.core.settings import AccountSettings
from millgate.core.snapshot import AccountReading
from millgate.core.tickets import SOONEST_RETURN_S
from millgate.core.words import FailureKind

# Refusals come at once: a trial that has not failed by now is being answered, however long that takes. Pauses between
# trials double up to it, where those of the breaker begin: single requests do no harm, and an outage should hardly
# outlast its cause.
_PATIENCE_S = BREAKER_PAUSE_S
# One connection may be lost in the net; after so many in a row no request is kept waiting.
_UNREACHED = 2
# These speak for the next request as well; one answer that failed or broke speaks for itself, and to the breaker.
_DOUBTED = (FailureKind.CONNECT, FailureKind.REFUSED)


class Provider:
    """Says when an attempt may be sent to the account, and learns from what comes back.

    After a refused connection, a 503 or a 529 one request at a time is sent until one is answered: what waits behind
    a pause would otherwise all be sent to fail with it.
    """

    def __init__(self, settings: AccountSettings, now: float, *, own_key: bool = False) -> None:
        self.account = Account(settings, now)
        self._own_key = own_key
        self._charged: dict[int, Reservation] = {}
        self._in_doubt = False
        self._unreached = 0
        self._pause_s = FIRST_PAUSE_S
        self._next_trial_at = float("-inf")
        self._probing: int | None = None
        self._refused_at = self._tried_at = float("-inf")
        self.breaker = Breaker()

    def wait_s(self, sizes: Sizes, now: float, place: int = 1) -> float:
        """Return how long until the `place`-th attempt like this may be sent, 0 if now; infinite if never."""
        doubt_s = 0.0
        if self.is_shut(now):
            # Its answer wakes none by itself.
            doubt_s = max(SOONEST_RETURN_S, (self.breaker.next_try_at or now) - now)
        elif self._in_doubt and self._probing is not None and now - self._tried_at < _PATIENCE_S:
            doubt_s = SOONEST_RETURN_S
        return max(self.account.wait_s(sizes, now, place), doubt_s)

    def reading(self, now: float) -> AccountReading:
        """Return the account's levels and whether the breaker is open; changes nothing."""
        return AccountReading(*self.account.levels(now), self.breaker.is_open)

    def is_shut(self, now: float) -> bool:
        """Return whether the breaker lets no request through now: it is open, and no try is due or one is under way."""
        return not self.breaker.allows(now, self._probing is not None)

    def is_down(self, now: float) -> bool:
        """Return whether no request should wait for it: its breaker is open, or it could not be reached twice in a row.

        A trial that is due is not kept from going.
        """
        if self._unreached < _UNREACHED and not self.breaker.is_open:
            return False
        trying = self._probing is not None and now - self._tried_at < _PATIENCE_S
        return self.is_shut(now) or now < self._next_trial_at or trying

    def started(self, attempt: int, sizes: Sizes, now: float) -> None:
        """Reserve for an attempt that is being sent."""
        self._charged[attempt] = self.account.take(sizes, now)
        if self._in_doubt and self._probing is not None:
            self._in_doubt, self._unreached = False, 0  # the trial before has outlasted the patience for it
        if self.breaker.is_open or self._in_doubt:
            self._probing, self._tried_at = attempt, now

    def read(self, attempt: int, prompt_tokens: int, cached_tokens: int) -> None:
        """Charge so much for its prompt if its end will say nothing else."""
        if (charged := self._charged.get(attempt)) is not None:
            charged.read(prompt_tokens, cached_tokens)

    def grew(self, attempt: int, output_tokens: int, now: float) -> None:
        """Charge what has been produced so far."""
        if (charged := self._charged.get(attempt)) is not None:
            self.account.progress(charged, output_tokens, now)
        if self._probing == attempt and output_tokens:
            self._succeeded(attempt, now)

    def answered(
        self, attempt: int, prompt_tokens: int | None, cached_tokens: int, output_tokens: int, now: float
    ) -> None:
        """Settle by the real size; the answer also speaks for the provider's health."""
        self._settle(attempt, prompt_tokens, cached_tokens, output_tokens, now)
        self.account.answered(prompt_tokens, cached_tokens, output_tokens)
        self._succeeded(attempt, now)

    def failed(self, event: Failed, sent_at: float, output_tokens: int, now: float) -> None:
        """Give back what a refusal of an attempt that was `sent_at` did not use, and learn what it says."""
        attempt = event.attempt
        if event.kind is FailureKind.NO_CREDIT:
            self._settle(attempt, 0, 0, 0, now)
        elif event.over_limit:
            self._settle(attempt, None if output_tokens else 0, 0, output_tokens, now)
            self.account.refused(event.hint_s, now, event.limit)
        else:
            self._settle(attempt, None, 0, output_tokens, now)
            if event.kind in _DOUBTED:
                self._doubt(event.kind, event.hint_s, now)
        lacks_credit = event.kind is FailureKind.NO_CREDIT and self._own_key
        if event.kind in BLAMELESS and not (lacks_credit or event.blames_request):
            self._succeeded(attempt, now)
        elif not (event.blames_request or event.over_limit or self._is_of_volley(event, sent_at, now)):
            self.breaker.failed(now, event.hint_s)
        self._probed(attempt)  # a trial that has shown neither leaves the next request to try

    def _doubt(self, kind: FailureKind, hint_s: float | None, now: float) -> None:
        """Pause until the hint, or a little longer than the last time, and then try singly."""
        if hint_s is None:
            hint_s = self._pause_s if now >= self._next_trial_at else 0.0
        if now >= self._next_trial_at:
            self._unreached = self._unreached + 1 if kind is FailureKind.CONNECT else 0
            self._pause_s = min(2.0 * self._pause_s, _PATIENCE_S)
        self._next_trial_at = max(self._next_trial_at, now + hint_s)
        self._in_doubt = True
        self.account.pause(hint_s, now)

    def _is_of_volley(self, event: Failed, sent_at: float, now: float) -> bool:
        """Return whether it was sent before an earlier 503 or 529 came back: those of one burst count as one failure."""
        if event.kind is not FailureKind.REFUSED:
            return False
        if sent_at <= self._refused_at:
            return True
        self._refused_at = now
        return False

    def left(self, attempt: int, output_tokens: int, now: float) -> None:
        """Settle for a client that hung up: what was produced is charged."""
        self._settle(attempt, None, 0, output_tokens, now)
        self._probed(attempt)

    def _settle(self, attempt: int, prompt: int | None, cached: int, output: int, now: float) -> None:
        """Correct what is reserved for it, once."""
        charged = self._charged.pop(attempt, None)
        if charged is not None:
            self.account.settle(charged, prompt, cached, output, now)

    def _succeeded(self, attempt: int, now: float) -> None:
        self.breaker.succeeded(now)
        if self._probing == attempt:
            self._in_doubt = False
            self._unreached = 0
            self._pause_s = FIRST_PAUSE_S
        self._probed(attempt)

    def _probed(self, attempt: int) -> None:
        if self._probing == attempt:
            self._probing = None

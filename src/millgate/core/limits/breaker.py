"""The breaker of one engine: after repeated failures it stops sending there, tries again singly, and closes.

It opens on so many failures in a row (an engine that is dead), or on as many failures as successes in a window of
`ENOUGH` calls (Hystrix's `requestVolumeThreshold`, 20; one that is half dead, or that a balancer in front of several
hides; Hystrix's `errorThresholdPercentage`, 50). It stays open for a time that doubles with every try that fails, up to
the longest hint that a client is ever given. Then one request at a time is let through; the first success closes it.
Failures that are not `BLAMELESS` count; an answer that blames the request, or its client's key, is neither a failure
nor a success.
"""

from millgate.core.measure import ENOUGH, WINDOW_S, Window, spread
from millgate.core.settings import LONGEST_HINT_S
from millgate.core.words import FailureKind

CONSECUTIVE_FAILURES = 5
"""Failures in a row that open it: Envoy's default for ejecting a host (outlier detection, `consecutive_5xx`)."""
FIRST_PAUSE_S = 5.0
"""How long it stays open the first time: Hystrix's `sleepWindowInMilliseconds`, 5,000."""

BLAMELESS = (FailureKind.ERROR_EVENT, FailureKind.ABORT, FailureKind.NO_CREDIT)
"""Failures that do not say that the engine is unwell: one that streams is alive, and the request may be to blame; nor does a client's account without credit."""


def restart_hint_s(attempt: int, retry_count: int | None) -> float:
    """Return when the client of this attempt, which found no engine, is to come back: time for a health check and a restart to show.

    That is 5 to 10 s, spread, and twice as long after each of two retries that the client labels. SDKs try three times
    (`max_retries` 2 of OpenAI's and Anthropic's): their last try comes after 15 to 30 s, and not after 10 to 20 s, when
    few engines have loaded their model.
    """
    return FIRST_PAUSE_S * 2.0 ** min(retry_count or 0, 2) * (1.0 + spread(attempt))


class Breaker:
    """Closed, or open until `next_try_at` and then for single probes. Times are core seconds."""

    def __init__(self) -> None:
        self.opened_at: float | None = None
        self.next_try_at: float | None = None
        self._pause_s = FIRST_PAUSE_S
        self._close(float("-inf"))

    @property
    def is_open(self) -> bool:
        """Whether the engine is taken for broken: nothing but single probes go there."""
        return self.next_try_at is not None

    def allows(self, now: float, probes_in_flight: int) -> bool:
        """Return whether a request may be sent now; changes nothing.

        `probes_in_flight` counts what was sent since the breaker opened and has not ended.
        """
        if self.next_try_at is None:
            return True
        return now >= self.next_try_at and probes_in_flight == 0

    def failed(self, now: float, hint_s: float | None = None) -> None:
        """A counted failure has come; open if it is one too many, for at least the engine's own hint.

        While open, failures before `next_try_at` are of requests sent earlier and change nothing.
        """
        if self.next_try_at is None:
            self._calls.add(now, (0, 1))
            self._in_a_row += 1
            successes, failures = self._calls.read(now, WINDOW_S)
            mostly_fails = successes + failures >= ENOUGH and failures >= successes
            if self._in_a_row >= CONSECUTIVE_FAILURES or mostly_fails:
                self._open(now, hint_s)
        elif now >= self.next_try_at:
            self._open(now, hint_s)

    def succeeded(self, now: float) -> None:
        """An answer has come that blames nothing on the engine; a probe's closes the breaker."""
        if self.next_try_at is None:
            self._in_a_row = 0
            self._calls.add(now, (1, 0))
        elif now >= self.next_try_at:
            self._close(now)

    def _open(self, now: float, hint_s: float | None) -> None:
        """Stay open twice as long as the last time, unless it has been well for the longest pause since."""
        if self.next_try_at is None and now - self._closed_at >= LONGEST_HINT_S:
            self._pause_s = FIRST_PAUSE_S
        pause_s = min(max(self._pause_s, hint_s or 0.0), LONGEST_HINT_S)
        self._pause_s = min(2.0 * self._pause_s, LONGEST_HINT_S)
        self.opened_at = now if self.opened_at is None else self.opened_at
        self.next_try_at = now + pause_s

    def _close(self, now: float) -> None:
        self.opened_at = self.next_try_at = None
        self._closed_at = now
        self._in_a_row = 0
        self._calls = Window(1.0, WINDOW_S, counters=2)

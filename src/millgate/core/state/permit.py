"""One permit, what runs on an engine for an attempt until the engine is done with it; and when it lets go of a client that has left."""

from typing import Final

from millgate.core.lifecycle import State
from millgate.core.measure import Ewma
from millgate.core.quotas.bucket import Reservation
from millgate.core.words import IgnoresHangups


class Permit:
    """What an engine does for one attempt; absolute core seconds, tokens over all `answers`.

    `serial` is the order in which attempts were taken in. `prefill_ahead` and `expected_ttft_s` were foreseen at the
    admission, `foreseen_tokens` then or since. `due_at` is when time alone tells something: that a prompt is read, or
    that the engine has let go of a client that left at `gone_at`. `listed_end` is where `capacity_forecast` keeps it.
    It was `sent_at`; until then another engine reads its prompt, and it `is_elsewhere`.
    `looked_at` and `looked_tokens` are how far its stream was when last looked at, `read_before` the prompt tokens that the
    engine had read by its first token. `charged` is what a provider's account has reserved for it.
    """

    def __init__(
        self,
        attempt: int,
        serial: int,
        streams: int,
        answers: int,
        admitted_at: float,
        prefill_ahead: float,
        expected_ttft_s: float,
        foreseen_tokens: int,
    ) -> None:
        self.attempt, self.serial = attempt, serial
        self.streams, self.answers = streams, answers
        self.state = State.PREFILL
        self.admitted_at = self.sent_at = self.looked_at = admitted_at
        self.is_elsewhere = False
        self.prefill_ahead, self.expected_ttft_s = prefill_ahead, expected_ttft_s
        self.due_at = admitted_at + expected_ttft_s
        self.foreseen_tokens = foreseen_tokens
        self.output_seen = self.looked_tokens = self.read_before = 0
        self.first_token_at: float | None = None
        self.gone_at: float | None = None
        self.listed_end: float | None = None
        self.charged: Reservation | None = None

    def first_token(self, now: float) -> None:
        """The prompt has been read."""
        self.state = State.DECODE
        self.first_token_at = self.looked_at = now

    def is_away(self) -> None:
        """Another engine reads its prompt first."""
        self.is_elsewhere = True

    def is_sent(self, now: float) -> None:
        """It goes to its engine now."""
        self.is_elsewhere = False
        self.sent_at = now

    def reads_itself(self, prefill_ahead: float, expected_ttft_s: float) -> None:
        """Its engine reads the prompt after all, behind so many tokens; its first token is expected so long after it was sent."""
        self.prefill_ahead, self.expected_ttft_s = prefill_ahead, expected_ttft_s
        self.due_at = self.sent_at + expected_ttft_s

    def reads_after(self, tokens: int) -> None:
        """Note how many prompt tokens its engine had read by its first token."""
        self.read_before = tokens

    def grows(self, output_tokens: int, now: float) -> None:
        """Its stream has come this far."""
        self.output_seen = self.looked_tokens = output_tokens
        self.looked_at = now

    def answered(self, output_tokens: int) -> None:
        """Its answer is whole, and so long."""
        self.output_seen = output_tokens

    def began_unseen(self, now: float) -> float:
        """Return when its answer began; where that was never seen, when its prompt was believed to be read."""
        if self.first_token_at is not None:
            return self.first_token_at
        self.looked_at = min(now, self.admitted_at + self.expected_ttft_s)
        return self.looked_at

    def ended(self, now: float) -> None:
        """Its attempt has its outcome, and the engine may still be busy with it."""
        self.state = State.DEPARTING
        self.due_at = now

    def departs(self, now: float, due_at: float) -> None:
        """Its client has left, and the engine is done with it by `due_at`, as far as is known."""
        self.gone_at, self.due_at = now, due_at

    def is_done(self, now: float) -> bool:
        """Return whether its engine has let go of a client that left, by time alone."""
        return self.state is State.DEPARTING and self.gone_at is not None and now >= self.due_at

    def released(self) -> None:
        """The engine is done with it."""
        self.state = State.OVER

    def foreseen_anew(self, output_tokens: int) -> None:
        """Expect so many tokens from now on."""
        self.foreseen_tokens = output_tokens

    def listed(self, end: float | None) -> None:
        """Note under which expected end the forecast keeps it; None while it does not."""
        self.listed_end = end

    def was_charged(self, charged: Reservation) -> None:
        """Note what a provider's account has reserved for it."""
        self.charged = charged

    def settles(self) -> Reservation | None:
        """Return what is reserved for it in a provider's account, once."""
        charged, self.charged = self.charged, None
        return charged


# How long an engine takes to notice a hang-up before it has been measured (design section 4).
PRIOR_ABORT_LAG_S: Final = 0.3
# An engine that has not let go after this many abort lags ignores hang-ups.
_IGNORING_LAGS: Final = 3.0


class Hangups:
    """What is known of one engine: its abort `lag`, and whether hang-ups are `ignored`, as configured or as learned."""

    __slots__ = ("_configured", "ignored", "lag")

    def __init__(self, configured: IgnoresHangups) -> None:
        self._configured = configured
        self.ignored = configured is IgnoresHangups.YES
        self.lag = Ewma(PRIOR_ABORT_LAG_S, memory=20.0)

    def reconfigured(self, configured: IgnoresHangups) -> None:
        """Take this setting; what was learned stays where it says to learn."""
        self._configured = configured
        if configured is not IgnoresHangups.AUTO:
            self.ignored = configured is IgnoresHangups.YES

    def departs_at(self, permit: Permit) -> float:
        """Return when the permit of a client that has left is expected to end: after the engine's abort lag.

        `due_at` is when the permit ends at the latest. Where a gauge will show that the engine has stopped, that is the
        whole rest of the answer, and is expected only of an engine that is known to ignore hang-ups.
        """
        if permit.gone_at is None or self.ignored:
            return permit.due_at
        return min(permit.due_at, permit.gone_at + self.lag.mean)

    def learn(self, permit: Permit, seen_at: float, *, ignoring: bool) -> None:
        """Learn from one reading of the gauge: how long the engine took to let go, or that it does not."""
        assert permit.gone_at is not None
        lag_s = seen_at - permit.gone_at
        patience_s = _IGNORING_LAGS * self.lag.mean
        auto = self._configured is IgnoresHangups.AUTO
        if ignoring:
            self.ignored = self.ignored or (auto and lag_s > patience_s)
        elif lag_s <= patience_s:
            self.lag.add(lag_s)
            self.ignored = self.ignored and not auto

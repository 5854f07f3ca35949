"""One permit: what runs on an engine for an attempt, from its admission until the engine is done with it."""

from millgate.core.lifecycle import State
from millgate.core.quotas.amounts import Reservation


class Permit:
    """What an engine does for one attempt; absolute core seconds, tokens over all `answers`.

    `serial` is the order in which attempts were taken in. `prefill_ahead` and `expected_ttft_s` were foreseen at the
    admission, `foreseen_tokens` then or since. `due_at` is when time alone tells something: that a prompt is read, or
    that the engine has let go of a client that left at `gone_at`. `listed_end` is where `capacity_forecast` keeps it.
    `looked_at` and `looked_tokens` are how far its stream was when last looked at, `read_before` the prompt tokens that the
    engine had read by its first token. `charged` is what a provider's account has reserved for it.
    """

    __slots__ = (
        "admitted_at",
        "answers",
        "attempt",
        "charged",
        "due_at",
        "expected_ttft_s",
        "first_token_at",
        "foreseen_tokens",
        "gone_at",
        "listed_end",
        "looked_at",
        "looked_tokens",
        "output_seen",
        "prefill_ahead",
        "read_before",
        "serial",
        "state",
        "streams",
    )

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
        self.admitted_at = self.looked_at = admitted_at
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

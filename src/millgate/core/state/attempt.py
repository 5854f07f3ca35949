"""One attempt that was taken in: its request, and the stage in which it is, queued or with a permit.

The arrows of `core/lifecycle` are the methods `admitted`, `turned_back` and `refused` here, and `first_token`, `ended` and
`released` of its `Permit`.
"""

from millgate.core.decisions import Leg
from millgate.core.lifecycle import State
from millgate.core.quotas.bucket import Reservation
from millgate.core.state.engine import Engine
from millgate.core.state.permit import Permit
from millgate.core.state.pool import Route
from millgate.core.state.request import Request


class Attempt:
    """One attempt from the time at which it was queued or admitted to its last release; absolute core seconds.

    `serial` is the order in which attempts were taken in. `foreseen_tokens` are expected of it where it is admitted: as its
    request says, or what its first try has taught. `engine` has its `permit`, the last one if it is over. `tried` is the engine
    that failed it before it had anything of it; there is no third try. Its tenant's quotas hold the `reservation`. It was queued
    last at `queued_at`, and is refused at `give_up_at`, no later than `queued_until`; `window_until` is when the batch window lets it go.
    """

    __slots__ = (
        "_stage",
        "engine",
        "foreseen_tokens",
        "give_up_at",
        "permit",
        "queued_at",
        "queued_until",
        "request",
        "reservation",
        "serial",
        "tried",
        "window_until",
    )

    def __init__(self, request: Request, serial: int) -> None:
        self.request, self.serial = request, serial
        self.foreseen_tokens = request.output_tokens
        self._stage = State.QUEUED
        self.queued_until: float | None = None
        self.give_up_at = self.window_until = self.queued_at = request.arrived_at
        self.engine: Engine | None = None
        self.permit: Permit | None = None
        self.tried: Engine | None = None
        self.reservation: Reservation | None = None

    @property
    def state(self) -> State:
        """Where it stands."""
        permit = self.permit
        return self._stage if permit is None else permit.state

    @property
    def output_seen(self) -> int:
        """How many tokens of its answer have been seen."""
        return 0 if self.permit is None else self.permit.output_seen

    @property
    def first_token_at(self) -> float | None:
        """When its first token came."""
        return None if self.permit is None else self.permit.first_token_at

    def waits(self, queued_until: float | None, now: float) -> None:
        """Wait in its queue from now on, while its first token can still be in time, and no longer than this; None bounds it by nothing else."""
        latest_start = self.request.latest_start()
        self.queued_at, self.queued_until = now, queued_until
        self.give_up_at = latest_start if queued_until is None else min(latest_start, queued_until)

    def waits_for_batch(self, until: float) -> None:
        """Wait for a batch until then."""
        self.window_until = until

    def moved(self, route: Route) -> None:
        """Wait in another queue: its engines have changed."""
        self.request = self.request.moved(route)

    def admitted(self, engine: Engine, leg: Leg, ttft_s: float, now: float) -> Permit:
        """It has a permit on this engine, and its first token is expected in `ttft_s`; return the permit."""
        request, arrival, ahead = self.request, self.request.arrival, engine.unread_tokens(now)
        permit = Permit(
            request.attempt,
            self.serial,
            leg.streams,
            arrival.answers,
            now,
            ahead,
            ttft_s,
            self.foreseen_tokens,
        )
        engine.starts(
            permit,
            leg,
            request.prompt_tokens,
            request.output_tokens,
            now,
            only_read=arrival.max_tokens == 0,
        )
        self.permit, self.engine = permit, engine
        return permit

    def turned_back(self, request: Request, serial: int) -> None:
        """Its engine failed it unsent: it waits, as its request is now, for the others."""
        if self.permit is not None:
            self.foreseen_tokens = self.permit.foreseen_tokens
        self.tried, self.engine, self.permit = self.engine, None, None
        self._stage = State.QUEUED
        self.request, self.serial = request, serial

    def refused(self, now: float) -> None:
        """It leaves its queue for good, refused or left by its client; what was reserved for it is given back."""
        self._stage = State.OVER
        if self.reservation is not None:
            self.reservation.cancel(now)
            self.reservation = None

    def reserves(self, reservation: Reservation | None) -> None:
        """Hold this of its tenant's quotas."""
        self.reservation = reservation

    def settles(self, prompt_tokens: int | None, cached_tokens: int, now: float) -> None:
        """Correct what was reserved for it to what it used; None leaves the estimate of its prompt."""
        if self.reservation is not None:
            self.reservation.settle(prompt_tokens, cached_tokens, self.output_seen, now)
            self.reservation = None

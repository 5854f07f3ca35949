"""One attempt from its arrival to its last release: its sizes, its age, where it waits, and its permit.

`judge`-ing an arrival writes to a fresh draft alone, and only through its methods. The arrows of `core/lifecycle` are the
methods `admitted`, `turned_back` and `refused` here, and `first_token`, `ended` and `released` of its `Permit`.
"""

from millgate.core.decisions import Classed, Leg, Reshaped
from millgate.core.events import Arrived
from millgate.core.lifecycle import State
from millgate.core.quotas.amounts import Reservation, Sizes
from millgate.core.state.engine import Engine
from millgate.core.state.lane import Lane
from millgate.core.state.permit import Permit
from millgate.core.state.pool import Route
from millgate.core.tickets import EARLY_RETURNS_FORGIVEN, Appointment, ReturnRecord
from millgate.core.words import DeadlineFrom


class Attempt:
    """One attempt; absolute core seconds, tokens, bytes.

    It is what a queue holds (`queues.base.Queued`). `arrival_number` orders equal `first_seen`; a recognised retry has its request's.
    `lane_deadline` is the lane's own, `deadline` the sooner of that and what the client allows. `route` is which engines may serve it, and `queue`
    where it waits if it must. `lined_up_at`, `early_returns`, `turn` and `as_old_as` place it among the appointments (`tickets`). Its tenant's
    quotas hold the `reservation`. `work_s` is the part of an engine's time that it is foreseen to take, `engine_s` the same as the orders rank it (0
    where it is back when promised), `service_s` the time that its streams are out, as the early warning counts it and lines are summed up.
    `foreseen_tokens` are expected of it where it is admitted: `output_tokens`, or what its first try has taught. `engine` has its `permit`, the last
    one if it is over. `tried` is the engine that failed it before it had anything of it; there is no third try. `appointment` is what its client had
    been told, and `told_share` which part of the line was expected to return. `classed` says why it is in its lane, where its size decided that. It
    was queued last at `queued_at`, if it was. While it is queued it is refused at `give_up_at`; `window_until` is when the batch window lets it go.
    """

    __slots__ = (
        "_stage",
        "appointment",
        "arrival",
        "arrival_number",
        "arrived_at",
        "as_old_as",
        "attempt",
        "body_bytes",
        "classed",
        "deadline",
        "early_returns",
        "engine",
        "engine_s",
        "fingerprint",
        "first_seen",
        "foreseen_tokens",
        "give_up_at",
        "kv_tokens",
        "lane",
        "lane_deadline",
        "lined_up_at",
        "output_tokens",
        "permit",
        "prompt_tokens",
        "queue",
        "queued_at",
        "queued_until",
        "recognised",
        "reservation",
        "reshaped",
        "route",
        "serial",
        "service_s",
        "tenant",
        "told_share",
        "tried",
        "turn",
        "weight",
        "window_until",
        "work_s",
    )

    def __init__(
        self, arrival: Arrived, lane: Lane, route: Route, weight: float, now: float, number: int
    ) -> None:
        self.attempt, self.tenant, self.weight = arrival.attempt, arrival.tenant, weight
        self.arrival, self.arrival_number, self.serial = arrival, number, 0
        self.lane, self.route, self.queue = lane, route, lane.queue_for(route)
        self.body_bytes, self._stage = arrival.body_bytes, State.QUEUED
        self.fingerprint: int | None = None
        self.arrived_at = self.queued_at = self.first_seen = self.lined_up_at = self.as_old_as = now
        self.early_returns = self.turn = 0
        self.appointment: Appointment | None = None
        self.window_until = self.lane_deadline = self.deadline = self.give_up_at = now
        self.recognised, self.told_share = False, 1.0
        self.queued_until: float | None = None
        self.prompt_tokens = self.output_tokens = self.foreseen_tokens = self.kv_tokens = 0
        self.engine_s = self.work_s = self.service_s = 0.0
        self.engine: Engine | None = None
        self.permit: Permit | None = None
        self.tried: Engine | None = None
        self.reservation: Reservation | None = None
        self.reshaped: Reshaped | None = None
        self.classed: Classed | None = None

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

    # A draft: what is judged about an arrival.

    def sized(self, prompt_tokens: int, output_tokens: int, kv_tokens: int) -> None:
        """Expect it to have these sizes."""
        self.prompt_tokens, self.kv_tokens = prompt_tokens, kv_tokens
        self.output_tokens = self.foreseen_tokens = output_tokens

    def sizes(self) -> Sizes:
        """Return what it takes from quotas, over all its answers."""
        arrival = self.arrival
        most = None if arrival.max_tokens is None else arrival.max_tokens * arrival.answers
        return Sizes(self.prompt_tokens, self.output_tokens, most)

    def body(self) -> int:
        """Return the request's fingerprint, computed at most once."""
        fingerprint = self.fingerprint
        if fingerprint is None:
            assert self.arrival.fingerprint is not None
            fingerprint = self.fingerprint = self.arrival.fingerprint()
        return fingerprint

    def continues(self, record: ReturnRecord, now: float) -> None:
        """Take its age and its turn in the line back from the record that it continues.

        Not its turn where it has come too early too often.
        """
        is_early = record.is_early(now) and not self.arrival.caps_sleep
        if record.due_at is not None:
            self.appointment, self.told_share = record.appointment, record.share
        self.recognised = True
        if not self._begins_anew(record.first_seen, record.appointment):
            self.first_seen = self.as_old_as = record.first_seen
        self.early_returns = record.early_returns + is_early
        if self.early_returns <= EARLY_RETURNS_FORGIVEN or not is_early:
            lined_up_at = record.first_seen if record.lined_up_at is None else record.lined_up_at
            self.arrival_number, self.lined_up_at, self.turn = record.number, lined_up_at, record.turn
            self.as_old_as = record.as_old_as

    def proves_age(self, first_seen: float, record: ReturnRecord | None, now: float) -> None:
        """Take the age that its door knows; a ticket proves it for as long as a record would be kept."""
        appointment = _told_by_ticket(self.arrival)
        if appointment is not None and now >= appointment.known_until(
            self._deadline_of(first_seen, appointment)
        ):
            return
        self.recognised = True
        if self.appointment is None:
            self.appointment = appointment
        if not self._begins_anew(first_seen, appointment):
            self.first_seen = min(self.first_seen, first_seen)
        self.as_old_as = min(self.as_old_as, self.first_seen)
        if record is None:
            self.lined_up_at = self.first_seen

    def _deadline_of(self, first_seen: float, appointment: Appointment) -> float:
        """Return the deadline of the attempt that was refused with this appointment."""
        settings = self.lane.settings
        origin = first_seen if settings.deadline_from is DeadlineFrom.FIRST_ATTEMPT else appointment.told_at
        return origin + settings.deadline_s

    def _begins_anew(self, first_seen: float, appointment: Appointment | None) -> bool:
        """Return whether it was asked back after its deadline, as without an engine or by a quota: its age would only refuse it."""
        if appointment is None or self.lane.settings.deadline_from is not DeadlineFrom.FIRST_ATTEMPT:
            return False
        return appointment.due_at > self._deadline_of(first_seen, appointment)

    def dated(self, lane_deadline: float, deadline: float) -> None:
        """Be in time until then, by the lane and by its client."""
        self.lane_deadline, self.deadline = lane_deadline, deadline

    def priced(self, work_s: float, service_s: float) -> None:
        """Expect it to take so much of an engine, and its streams to be out for so long."""
        self.work_s = self.engine_s = work_s
        self.service_s = service_s

    def goes_first(self) -> None:
        """Rank it as the shortest there is."""
        self.engine_s = 0.0

    def stands_in(self, turn: int) -> None:
        """Have this turn in the fair line of those that come back."""
        self.turn = turn

    def may_wait_until(self, at: float | None) -> None:
        """Wait no longer than until then; None where nothing bounds the wait but its deadline."""
        self.queued_until = at

    def runs_as(self, reshaped: Reshaped) -> None:
        """Run shorter, or in another lane, than its client asked for."""
        self.reshaped = reshaped

    # From its arrival on: what has happened to it.

    def taken_in(self, serial: int) -> None:
        """It is queued or admitted, after so many others."""
        self.serial = serial

    def ends_appointment(self) -> Appointment | None:
        """Return what its client had been told, once: a hint is judged once."""
        appointment, self.appointment = self.appointment, None
        return appointment

    def waits_until(self, give_up_at: float) -> None:
        """Wait in its queue until then."""
        self.give_up_at = give_up_at

    def waits_for_batch(self, until: float) -> None:
        """Wait for a batch until then."""
        self.window_until = until

    def moved(self, route: Route) -> None:
        """Wait in another queue: its engines have changed."""
        self.route, self.queue = route, self.lane.queue_for(route)

    def admitted(self, engine: Engine, leg: Leg, ttft_s: float, now: float) -> Permit:
        """It has a permit on this engine, and its first token is expected in `ttft_s`; return the permit."""
        arrival, ahead = self.arrival, engine.unread_tokens(now)
        permit = Permit(
            self.attempt, self.serial, leg.streams, arrival.answers, now, ahead, ttft_s, self.foreseen_tokens
        )
        engine.starts(
            permit, leg, self.prompt_tokens, self.output_tokens, now, only_read=arrival.max_tokens == 0
        )
        self.permit, self.engine = permit, engine
        return permit

    def turned_back(self, detour: Route, give_up_at: float, now: float) -> None:
        """Its engine failed it unsent: from now on it waits for the others on this detour."""
        if self.permit is not None:
            self.foreseen_tokens = self.permit.foreseen_tokens
        self.tried, self.engine, self.permit = self.engine, None, None
        self._stage = State.QUEUED
        self.queued_at, self.give_up_at = now, give_up_at
        self.moved(detour)

    def refused(self) -> None:
        """It leaves its queue for good: it is refused, or its client has left."""
        self._stage = State.OVER

    def reserves(self, reservation: Reservation | None) -> None:
        """Hold this of its tenant's quotas."""
        self.reservation = reservation

    def gives_back(self, now: float) -> None:
        """Give back what was reserved for it: it never ran."""
        if self.reservation is not None:
            self.reservation.cancel(now)
            self.reservation = None

    def settles(self, prompt_tokens: int | None, cached_tokens: int, now: float) -> None:
        """Correct what was reserved for it to what it used; None leaves the estimate of its prompt."""
        if self.reservation is not None:
            self.reservation.settle(prompt_tokens, cached_tokens, self.output_seen, now)
            self.reservation = None


def put_in_class(draft: Attempt, lane: Lane, classed: Classed) -> None:
    """Put a draft into this lane, which its size or its first attempt has chosen."""
    draft.lane, draft.queue, draft.classed = lane, lane.queue_for(draft.route), classed


def _told_by_ticket(arrival: Arrived) -> Appointment | None:
    """Return what its client was told by the ticket that it brings; None without one."""
    due_at, hint_s = arrival.due_at, arrival.hint_s
    return None if due_at is None else Appointment(due_at - hint_s, hint_s)


def is_retry(attempt: Attempt) -> bool:
    """Return whether its request came before: it was recognised, or says so itself."""
    return attempt.recognised or bool(attempt.arrival.retry_count)

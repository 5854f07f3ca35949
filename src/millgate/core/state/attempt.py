"""One attempt: the request as it came, of which nothing changes, and the stage in which it is once it was taken in.

The arrows of `core/lifecycle` are the methods `admitted`, `turned_back` and `refused` here, and `first_token`, `ended` and
`released` of its `Permit`.
"""

from math import inf

from millgate.core.decisions import Classed, Leg, Reshaped
from millgate.core.events import Arrived, PrefixMarks
from millgate.core.lifecycle import State
from millgate.core.limits.gate import is_only_read
from millgate.core.queues.base import Queued
from millgate.core.quotas.bucket import Reservation, Sizes
from millgate.core.routing.working_set import LiveSession
from millgate.core.settings import LaneSettings
from millgate.core.state.engine import Engine, Permit
from millgate.core.state.lane import Lane
from millgate.core.state.leg import PrefillLeg
from millgate.core.state.pool import Route
from millgate.core.tickets import EARLY_RETURNS_FORGIVEN
from millgate.core.tickets.appointment import Appointment, ReturnRecord, kept_within_s
from millgate.core.words import DeadlineFrom


class Age:
    """Which earlier attempts an arrival continues, and the place in the line that this gives it; absolute core seconds.

    It is `recognised` by the `record` of an attempt that was refused or hung up before, or by the ticket that it brings.
    `number` orders equal `first_seen`; a recognised retry has its request's. `lined_up_at`, `early_returns`, `turn` and
    `as_old_as` place it among the appointments (`tickets`). `appointment` is what its client had been told, `told_share` which
    part of the line was expected to return then. It `is_promised` a permit where its client is back on time, and `agreed` where
    the client is back when told, or cannot help coming sooner, or may be no return at all.
    """

    def __init__(
        self, arrival: Arrived, settings: LaneSettings, record: ReturnRecord | None, number: int, now: float
    ) -> None:
        self.first_seen = self.lined_up_at = self.as_old_as = now
        self.number, self.record, self.early_returns, self.turn = number, record, 0, 0
        self.appointment: Appointment | None = None
        self.told_share, self.recognised = 1.0, False
        if record is not None:
            self._continue(record, settings, now, caps_sleep=arrival.caps_sleep)
        if arrival.first_seen is not None:
            self._prove(arrival, arrival.first_seen, settings, now)
        self.is_promised, self.agreed = self._standing(arrival, now)

    @property
    def promise(self) -> Appointment | None:
        """What its client was promised: its appointment in the line of engines, or in that of a quota."""
        record = self.record
        if record is None or record.due_at is not None or record.open_until <= 0.0:
            return self.appointment
        return record.appointment

    def begins_anew(self, now: float) -> None:
        """Its deadline begins now; its place in the line stays."""
        self.first_seen = now

    def _standing(self, arrival: Arrived, now: float) -> tuple[bool, bool]:
        """Return whether it is promised a permit now, and whether it is agreed that it comes now."""
        record, told = self.record, self.appointment
        # Of several that are away with one body, as all of a load test's are, nothing tells a return from one more first
        # attempt, unless its client labels it.
        is_alike = record is not None and record.is_shared and not arrival.retry_count
        is_back = (record is not None and record.is_agreed(now)) or (told is not None and told.is_due(now))
        return told is not None and told.is_honoured(now), is_alike or arrival.caps_sleep or is_back

    def _continue(
        self, record: ReturnRecord, settings: LaneSettings, now: float, *, caps_sleep: bool
    ) -> None:
        """Take its age and its turn in the line back from its record; not its turn where it came too early too often."""
        is_early = record.is_early(now) and not caps_sleep
        if record.due_at is not None:
            self.appointment, self.told_share = record.appointment, record.share
        self.recognised = True
        if not _begins_anew(record.first_seen, record.appointment, settings):
            self.first_seen = self.as_old_as = record.first_seen
        self.early_returns = record.early_returns + is_early
        if self.early_returns <= EARLY_RETURNS_FORGIVEN or not is_early:
            self.lined_up_at = record.first_seen if record.lined_up_at is None else record.lined_up_at
            self.number, self.turn, self.as_old_as = record.number, record.turn, record.as_old_as

    def _prove(self, arrival: Arrived, first_seen: float, settings: LaneSettings, now: float) -> None:
        """Take the age that its door knows; a ticket proves it for as long as a record would be kept."""
        told = (
            None if arrival.due_at is None else Appointment(arrival.due_at - arrival.hint_s, arrival.hint_s)
        )
        if told is not None and now >= told.known_until(_deadline_of(first_seen, told, settings)):
            return
        self.recognised = True
        if self.appointment is None:
            self.appointment = told
        if not _begins_anew(first_seen, told, settings):
            self.first_seen = min(self.first_seen, first_seen)
        self.as_old_as = min(self.as_old_as, self.first_seen)
        if self.record is None:
            self.lined_up_at = self.first_seen


def _deadline_of(first_seen: float, told: Appointment, settings: LaneSettings) -> float:
    """Return the deadline of the attempt that was refused with this appointment."""
    from_first = settings.deadline_from is DeadlineFrom.FIRST_ATTEMPT
    return (first_seen if from_first else told.told_at) + settings.deadline_s


def _begins_anew(first_seen: float, told: Appointment | None, settings: LaneSettings) -> bool:
    """Return whether its deadline left no time to keep that promise, as without an engine or by a quota: its age would only refuse it.

    No engine's hint is such a one, so that a client of a full engine does not live for ever.
    """
    if told is None or settings.deadline_from is not DeadlineFrom.FIRST_ATTEMPT:
        return False
    return told.due_at + kept_within_s(told.hint_s) > _deadline_of(first_seen, told, settings)


class Request(Queued):
    """One request; absolute core seconds, tokens over all its answers, bytes. It is what a queue orders (`queues.base.Queued`).

    `sizes` are its prompt tokens, the output tokens that are expected, the tokens that are reserved for it, and how many of
    its prompt quotas need not count. Its prompt is known by `marks`, and an engine held `cached_tokens` of it when it came,
    the others are `unread_tokens`.
    `lane_deadline` is the lane's own, `deadline` the sooner of that and what the client allows. `route` is which
    engines may serve it, and `queue` where it waits if it must; `classed` says why it is in its lane, where its size
    decided that. `work_s` is the part of an engine's time that it is foreseen to take, `engine_s` the same as the
    orders rank it (0 where it is back when promised), `service_s` the time that its streams are out, as the early
    warning counts it and lines are summed up.
    """

    def __init__(
        self,
        arrival: Arrived,
        lane: Lane,
        route: Route,
        weight: float,
        now: float,
        age: Age,
        *,
        sizes: tuple[int, int, int, int],
        deadlines: tuple[float, float],
        work_s: float,
        service_s: float,
        marks: PrefixMarks = (),
        cached_tokens: int = 0,
        fingerprint: int | None = None,
        reshaped: Reshaped | None = None,
        classed: Classed | None = None,
    ) -> None:
        self.attempt, self.tenant, self.weight = arrival.attempt, arrival.tenant, weight
        self.arrival, self.reshaped, self.body_bytes = arrival, reshaped, arrival.body_bytes
        self.lane, self.route, self.queue = lane, route, lane.queue_for(route)
        self.age, self.arrived_at, self._fingerprint, self.classed = age, now, fingerprint, classed
        self.first_seen, self.as_old_as, self.turn = age.first_seen, age.as_old_as, age.turn
        self.arrival_number, self.recognised = age.number, age.recognised
        self.prompt_tokens, self.output_tokens, self.kv_tokens, self._told_tokens = sizes
        self.marks, self._cached_tokens = marks, cached_tokens
        self.unread_tokens = max(1, self.prompt_tokens - cached_tokens)
        self.lane_deadline, self.deadline = deadlines
        self.work_s, self.service_s = work_s, service_s
        self.engine_s = 0.0 if age.is_promised else work_s

    def moved(self, route: Route) -> "Request":
        """Return the same request with another route."""
        return self._again(route, self.work_s)

    def ranked_by(self, work_s: float) -> "Request":
        """Return the same request as one that is foreseen to take so much of an engine's time."""
        return self._again(self.route, work_s)

    def _again(self, route: Route, work_s: float) -> "Request":
        return Request(
            self.arrival,
            self.lane,
            route,
            self.weight,
            self.arrived_at,
            self.age,
            sizes=(self.prompt_tokens, self.output_tokens, self.kv_tokens, self._told_tokens),
            marks=self.marks,
            cached_tokens=self._cached_tokens,
            deadlines=(self.lane_deadline, self.deadline),
            work_s=work_s,
            service_s=self.service_s,
            fingerprint=self._fingerprint,
            reshaped=self.reshaped,
            classed=self.classed,
        )

    @property
    def is_retry(self) -> bool:
        """Whether it came before: it was recognised, or says so itself."""
        return self.recognised or bool(self.arrival.retry_count)

    @property
    def is_charged(self) -> bool:
        """Whether the retry budget pays for it: a retry, known or labelled, that keeps no appointment."""
        return self.is_retry and not self.age.agreed

    @property
    def may_begin_anew(self) -> bool:
        """Whether it is back on time from a hint that lies with its tenant, as of a quota: its age is not held against it."""
        record = self.age.record
        if self.origin >= self.arrived_at or record is None or record.told_at is None:
            return False
        return record.appointment is not None and record.appointment.is_honoured(self.arrived_at)

    @property
    def origin(self) -> float:
        """When the times of its objective began: with its first attempt, or with this one."""
        from_first = self.lane.settings.deadline_from is DeadlineFrom.FIRST_ATTEMPT
        return self.first_seen if from_first else self.arrived_at

    @property
    def due_hold_s(self) -> float:
        """How long a client that is due is queued in any case: until its promise no longer counts as kept; else 0.

        A lane may say less, or nothing at all. Its ticket says what it was told where its record is at another replica.
        """
        record, told = self.age.record, self.age.appointment
        if told is None or not told.is_due(self.arrived_at) or (record is not None and record.due_at is None):
            return 0.0
        hold_s, most_s = told.hold_s, self.lane.settings.hold_due_s
        return hold_s if most_s is None else min(hold_s, most_s)

    @property
    def most_wait_s(self) -> float | None:
        """How long its lane and its client let it wait; None where neither says."""
        asked_s, most_s = self.arrival.max_wait_s, self.lane.settings.max_wait_s
        return most_s if asked_s is None or (most_s is not None and most_s < asked_s) else asked_s

    def latest_start(self) -> float:
        """Return when it must start for its first token to come in time; one engine is up."""
        return self.deadline - self.reading_s()

    def reading_s(self) -> float:
        """Return how long its prompt takes to be read, on the engine that reads fastest; infinite where none is up that can hold it."""
        least_s = inf
        for engine in self.route.up:
            if self.fits_on(engine):
                least_s = min(least_s, engine.service.ttft_s(self.unread_tokens))
        return least_s

    def fits_on(self, engine: Engine) -> bool:
        """Return whether its prompt and its streams could ever be on this engine, which works off a list that is only read text by text."""
        tokens = (
            self.prompt_tokens // self.arrival.answers if is_only_read(self.arrival) else self.prompt_tokens
        )
        return engine.gate.fits(tokens, engine.gate.streams_of(self.arrival))

    def sizes(self, held_tokens: float = inf) -> Sizes:
        """Return what it takes from quotas, over all its answers, of an engine that holds so much of its prompt."""
        arrival = self.arrival
        most = None if arrival.max_tokens is None else arrival.max_tokens * arrival.answers
        return Sizes(self.prompt_tokens, self.output_tokens, most, int(min(self._told_tokens, held_tokens)))

    def body(self) -> int:
        """Return its fingerprint, computed at most once."""
        fingerprint = self._fingerprint
        if fingerprint is None:
            assert self.arrival.fingerprint is not None
            fingerprint = self._fingerprint = self.arrival.fingerprint()
        return fingerprint


class Attempt:
    """One attempt from the time at which it was queued or admitted to its last release; absolute core seconds.

    `serial` is the order in which attempts were taken in. `foreseen_tokens` are expected of it where it is admitted: as
    its request says, or what its first try has taught. `engine` has its `permit`, the last one if it is over. `tried`
    is the engine that failed it before it had anything of it; there is no third try. Its tenant's quotas hold the
    `reservation`. An engine that has said how long the prompt is, has told `prompt_told` and `cached_told`. Where
    another engine reads its prompt, it `is_apart`, and `reading` is its first leg until that is over; a `lost_reader`
    has failed it. It was queued last at `queued_at`, and is refused at `give_up_at`, no later than `queued_until`;
    `window_until` is when the batch window lets it go, and `look_at` when it is looked at again before that.
    """

    def __init__(self, request: Request, serial: int) -> None:
        self.request, self.serial = request, serial
        self.foreseen_tokens = request.output_tokens
        self.cached_tokens = 0
        self.prompt_told: int | None = None
        self.cached_told: int | None = None
        self._stage = State.QUEUED
        self.queued_until: float | None = None
        self.give_up_at = self.window_until = self.queued_at = request.arrived_at
        self.engine: Engine | None = None
        self.permit: Permit | None = None
        self.look_at = 0.0
        self.session: LiveSession | None = None
        self.tried: Engine | None = None
        self.reservation: Reservation | None = None
        self.reading: PrefillLeg | None = None
        self.lost_reader: Engine | None = None
        self.is_apart = False

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

    def is_turn_of(self, session: LiveSession | None) -> None:
        """It is a turn of this session; of none once it is over."""
        self.session = session

    def is_looked_at(self, at: float) -> None:
        """It waits for something, and is looked at then."""
        self.look_at = at

    def moved(self, route: Route) -> None:
        """Wait in another queue: its engines have changed."""
        self.request = self.request.moved(route)

    def is_ranked_by(self, work_s: float) -> None:
        """Take another place in its queue, as it is foreseen to take so much of an engine's time."""
        before, self.request = self.request, self.request.ranked_by(work_s)
        # In before it is out: in fair queues a line without anyone waiting loses what it has saved.
        before.queue.order.add(self.request)
        before.queue.order.remove(before)

    @property
    def unread_tokens(self) -> int:
        """How many tokens of its prompt its engine has to read."""
        return max(1, self.request.prompt_tokens - self.cached_tokens)

    def admitted(self, engine: Engine, leg: Leg, ttft_s: float, cached_tokens: int, now: float) -> Permit:
        """It has a permit on this engine, which holds so much of its prompt; its first token is expected in `ttft_s`. Return the permit."""
        self.cached_tokens = cached_tokens
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
        only_read = is_only_read(arrival)
        engine.starts(permit, leg, self.unread_tokens, request.output_tokens, now, only_read=only_read)
        self.permit, self.engine = permit, engine
        return permit

    def is_read_by(self, leg: PrefillLeg | None) -> None:
        """Its prompt is read by this leg, or by its own engine, which then has all but one token of it, or none."""
        self.reading, self.is_apart = leg, leg is not None
        self.cached_tokens = self.request.prompt_tokens - 1 if self.is_apart else 0

    def loses_reader(self, reader: Engine) -> None:
        """The engine that was to read its prompt has failed, and its own cannot."""
        self.reading, self.lost_reader = None, reader

    @property
    def failed_by(self) -> Engine | None:
        """The engine whose failure ends its first try: the one that was to read its prompt, or its own."""
        return self.lost_reader or self.engine

    def was_read(self) -> None:
        """Its first leg is over."""
        self.reading = None

    def turned_back(self, request: Request, serial: int) -> None:
        """Its engine failed it unsent: it waits, as its request is now, for the others."""
        if self.permit is not None:
            self.foreseen_tokens = self.permit.foreseen_tokens
        self.tried, self.engine, self.permit = self.failed_by, None, None
        self.reading, self.lost_reader, self.is_apart = None, None, False
        self._stage, self.look_at = State.QUEUED, 0.0
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

    def is_told(self, prompt_tokens: int, cached_tokens: int | None) -> None:
        """Its engine has said how long its prompt is, and how much of it came from its cache, if it says that."""
        self.prompt_told = prompt_tokens
        self.cached_told = None if cached_tokens is None else min(cached_tokens, prompt_tokens)
        if self.reservation is not None:
            self.reservation.read(prompt_tokens, cached_tokens or 0)

    def settles(self, prompt_tokens: int | None, now: float) -> None:
        """Correct what was reserved for it to what it used; None leaves what is known of its prompt."""
        if self.reservation is not None:
            self.reservation.settle(prompt_tokens, 0, self.output_seen, now)
            self.reservation = None

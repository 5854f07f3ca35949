"""What the governor keeps: one record per attempt, per lane and per engine; everything mutable is here.

Only `governor/governor.py` and the modules beside it touch these; policies get numbers, observers get snapshots.
"""

from array import array
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from millgate.core.decisions import Cause, Reshaped
from millgate.core.events import Arrived, EngineSeen, Failed, QuotaReading
from millgate.core.governor.offered import OfferedWork
from millgate.core.governor.overtaking import Overtaking
from millgate.core.governor.streams import streams_of
from millgate.core.lanes import LaneShares
from millgate.core.lifecycle import State
from millgate.core.limits.build import build_limit
from millgate.core.limits.drain import FLOOR_SHARE, DrainRate, DrainReading
from millgate.core.limits.gate import EngineGate
from millgate.core.limits.signal import Signal
from millgate.core.littles_law.early_warning import EarlyWarning
from millgate.core.littles_law.law import LittlesLaw
from millgate.core.measure.ewma import Ewma
from millgate.core.queues.base import Order
from millgate.core.queues.window import BatchWindow
from millgate.core.quotas.amounts import Reservation
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior
from millgate.core.sizing.permit_times import PermitTimes
from millgate.core.sizing.reading import PromptReading
from millgate.core.sizing.service_time import ServiceTime
from millgate.core.slo import SloWatch
from millgate.core.tickets import Appointment, Places
from millgate.core.words import FailureKind, IgnoresHangups, Outcome, Reason, Stage

MakeOrder = Callable[[LaneSettings], Order]
# How long an engine takes to notice a hang-up before it has been measured (design section 4).
PRIOR_ABORT_LAG_S: Final = 0.3
# An idle engine is tried with a prompt this many times as long as any that it has read, whatever is predicted:
# it is the only way to learn, and nobody else waits for it.
_UNKNOWN_RATIO: Final = 2
_ANY_PROMPT: Final = 10**9
# Prompts that wait inside an engine are beyond any order: no more wait there than are read in this share of a deadline,
# unless they are ordered as the engine would (from a tenth to three tenths serve about as many: docs/policies/short-first.md).
_READING_SHARE: Final = 0.2
# An engine without a profile: its speed is known only as far as it has been learned.
_UNKNOWN_SPEED: Final = ServicePrior()
# What one permit is taken to carry before any was given; the first admission replaces it.
_USUAL_PROMPT_TOKENS: Final = 1000.0
_USUAL_OUTPUT_TOKENS: Final = 256.0


class Attempt:
    """One attempt from arrival to its last release; absolute core seconds, tokens, bytes.

    It is what a queue holds (`queues.base.Queued`). `arrival_number` orders equal `first_seen`; a recognised retry
    has its request's. `lane_deadline` is the lane's own, `deadline` the sooner of that and what the client allows.
    `listed_end` is where `capacity_forecast` keeps it, by the output `foreseen_tokens` at its arrival or since. `route` is who may serve it, and `queue` where it waits if it must. `lined_up_at`,
    `early_returns`, `turn` and `as_old_as` are its place in the line of those who come back (`tickets`); `looked_at` and
    `looked_tokens` how far its stream was when last looked at. `reservation` is its tenant's, `charged` the provider account's.
    `work_s` is the part of an engine's time that it is foreseen to take, `engine_s` the same as the orders rank it (0 for who is
    back when promised), `service_s` the time that its `streams` are out, as the early warning counts it and lines are summed up.
    `tried` is the engine that failed it before it had anything of it; there is no third try. `appointment` is what its client had
    been told, and `told_share` which part of the line was expected to return; `window_until` when the batch window lets it go that it was queued for.
    """

    __slots__ = (
        "admitted_at",
        "appointment",
        "arrival",
        "arrival_number",
        "arrived_at",
        "as_old_as",
        "attempt",
        "body_bytes",
        "charged",
        "deadline",
        "early_returns",
        "engine",
        "engine_s",
        "expected_ttft_s",
        "fingerprint",
        "first_seen",
        "first_token_at",
        "foreseen_tokens",
        "give_up_at",
        "gone_at",
        "kv_tokens",
        "lane",
        "lane_deadline",
        "lined_up_at",
        "listed_end",
        "looked_at",
        "looked_tokens",
        "output_seen",
        "output_tokens",
        "prefill_ahead",
        "prompt_tokens",
        "queue",
        "queued_until",
        "read_before",
        "recognised",
        "reservation",
        "reshaped",
        "route",
        "service_s",
        "state",
        "streams",
        "tenant",
        "told_share",
        "tried",
        "turn",
        "weight",
        "window_until",
        "work_s",
    )

    def __init__(self, arrival: Arrived, lane: "Lane", now: float, number: int) -> None:
        self.attempt, self.tenant = arrival.attempt, arrival.tenant
        self.weight, self.told_share, self.streams = 1.0, 1.0, arrival.answers
        self.arrival, self.arrival_number = arrival, number
        self.lane, self.arrived_at = lane, now
        self.body_bytes, self.state = arrival.body_bytes, State.QUEUED
        self.fingerprint: int | None = None
        self.first_seen = self.lined_up_at = self.as_old_as = now
        self.early_returns = self.turn = 0
        self.appointment: Appointment | None = None
        self.window_until = self.looked_at = self.lane_deadline = self.deadline = self.give_up_at = now
        self.recognised = False
        self.queued_until: float | None = None
        self.prompt_tokens = self.output_tokens = self.foreseen_tokens = self.kv_tokens = 0
        self.output_seen = self.read_before = self.looked_tokens = 0
        self.prefill_ahead = self.expected_ttft_s = self.engine_s = self.work_s = self.service_s = 0.0
        self.admitted_at = 0.0
        self.engine: Engine | None = None
        self.first_token_at: float | None = None
        self.gone_at: float | None = None
        self.listed_end: float | None = None
        self.reservation: Reservation | None = None
        self.charged: Reservation | None = None
        self.reshaped: Reshaped | None = None
        self.route: Route
        self.queue: LaneQueue
        self.tried: Engine | None = None


class Outlook(Protocol):
    """When permits come free: `capacity_forecast` is it; its methods are told there."""

    def note(self, attempt: Attempt) -> None:
        """Take note that this attempt has started, read its first token, or ended."""

    def answered(self, running: int) -> None:
        """Take note that an engine's learned speed has changed by one answer."""

    def rate_changed(self) -> None:
        """Take note that what counts as full has changed."""

    def unsettle(self) -> None:
        """Forget every derived number."""

    def wait_s(self, place: int, now: float, *, prompts: bool = True, streams: int = 1) -> float:
        """Return the expected time until the `place`-th permit, of so many streams, comes free."""

    def wait_behind_s(self, first: "array[int]", share: float, work_s: float, free: int, now: float) -> float:
        """Return the expected time until a permit comes free behind so much work."""

    def upper_s(self, place: int, *, mean_is_known: bool = True, prompts: bool = True) -> float:
        """Return how much longer than expected it may take, nine times in ten."""

    def absence_s(self, appointments: int, share: float) -> float:
        """Return how much longer it may take, nine times in ten, as more of these return than the `share`."""

    def per_s(self) -> float:
        """Return how many permits a second end while every gate is full."""


class Downstream(Protocol):
    """The account that an engine is: `provider` is it; its methods are told there."""

    def wait_s(self, draft: Attempt, now: float, place: int = 1) -> float:
        """Return how long until the `place`-th attempt like this may be sent."""

    def beyond(self, draft: Attempt) -> tuple[float, float] | None:
        """Return what this attempt needs and the most there ever is, where it can never be sent; else None."""

    def is_down(self, now: float) -> bool:
        """Return whether nobody should wait for it now."""

    def started(self, attempt: Attempt, now: float) -> None:
        """Reserve for an attempt that is being sent."""

    def grew(self, attempt: Attempt, now: float) -> None:
        """Charge what has been produced so far."""

    def answered(self, attempt: Attempt, prompt_tokens: int | None, cached_tokens: int, now: float) -> None:
        """Settle by the real size."""

    def failed(self, attempt: Attempt, event: Failed, now: float) -> None:
        """Give back what a refusal did not use."""

    def left(self, attempt: Attempt, now: float) -> None:
        """Settle for somebody who hung up."""

    def seen(self, reading: QuotaReading, now: float) -> None:
        """Learn from the headers of an answer."""


class Engine:
    """One engine: its gate, its learned speed, its gauges, and the permits of clients who have left.

    `capacity_forecast` foresees its work by the TPOT `pace_s`; `longest_read` counts the tokens of the longest prompt that it is known
    to have read; `drain_read` is forgotten whenever work starts, reads its first token or ends. `position` and `is_priced` are
    `placement`'s. One `on_trial` gets one request and `is_tried` then. A `retired` one lives until its last permit ends.
    """

    __slots__ = (
        "_has_profile",
        "abort_lag",
        "capacity_forecast",
        "departing",
        "drain",
        "drain_read",
        "gate",
        "ignores",
        "is_priced",
        "is_tried",
        "longest_read",
        "on_trial",
        "pace_s",
        "permit_times",
        "pool",
        "position",
        "provider",
        "reading",
        "retired",
        "seen",
        "service",
        "settings",
        "signal",
        "up",
        "work_output",
        "work_prompt",
        "work_read",
    )

    def __init__(self, settings: EngineSettings, now: float) -> None:
        self.adopt(settings)
        self.up = True
        self.on_trial = self.is_tried = self.retired = False
        limit = build_limit(settings.limit, settings.max_inflight, settings.prior)
        self.gate = EngineGate(limit, settings.kv_tokens, settings.prefill_tokens, settings.max_inflight)
        self.signal: Signal | None
        self.service = ServiceTime(settings.prior)
        self.reading = PromptReading(settings.prior.ttft_per_token_s, now)
        self.drain = DrainRate(settings.max_inflight)
        self.drain_read: DrainReading | None = None
        self.permit_times = PermitTimes()
        self.position, self.is_priced = 0, False
        self.longest_read = _ANY_PROMPT if settings.prior.certain else 0
        self.provider: Downstream | None = None
        self.capacity_forecast: Outlook
        self.pool: Pool
        self.pace_s = self.service.tpot_s(settings.max_inflight)
        self.abort_lag = Ewma(PRIOR_ABORT_LAG_S, memory=20.0)
        self.ignores = settings.ignores_hangups is IgnoresHangups.YES
        self.seen: EngineSeen | None = None
        self.departing: dict[int, Attempt] = {}
        self.signal = None if settings.limit.kind == "fixed" else Signal(now, settings.prior)
        self.work_prompt = Ewma(_USUAL_PROMPT_TOKENS, prior_samples=0.0)
        self.work_output = Ewma(_USUAL_OUTPUT_TOKENS, prior_samples=0.0)
        self.work_read = Ewma(0.0, prior_samples=0.0)

    def adopt(self, settings: EngineSettings) -> None:
        """Take these settings from now on; what was built by the ones before stays."""
        self.settings = settings
        self._has_profile = settings.prior != _UNKNOWN_SPEED

    @property
    def limit(self) -> int:
        """The number of streams in force."""
        return self.gate.limit.current()

    def has_room(self, draft: Attempt, now: float) -> bool:
        """Return whether this attempt could start here now: gate, and account where there is one."""
        gate, streams = self.gate, streams_of(self.gate, draft.arrival)
        if self.is_tried or not gate.has_room(draft.kv_tokens, draft.prompt_tokens, streams):
            return False
        return self._reads_soon(draft) and (self.provider is None or self.provider.wait_s(draft, now) <= 0.0)

    def _reads_soon(self, draft: Attempt) -> bool:
        """Return whether unread prompts, with this one, are read in a small part of its time; alone it always may."""
        gate, lane = self.gate, draft.lane.settings
        if gate.prefill_limit is None or not gate.prefill_tokens or lane.order == "arrival":
            return True
        reading_s = self.service.reading_s(gate.prefill_tokens + draft.prompt_tokens)
        return reading_s <= _READING_SHARE * lane.deadline_s

    def serves(self, model: str) -> bool:
        """Return whether this engine answers for the model."""
        return not self.settings.models or model in self.settings.models

    def unread_tokens(self, now: float) -> float:
        """Return the prompt tokens that it has yet to read."""
        return self.reading.unread(self.gate.prefill_tokens, now)

    def expected_ttft_s(self, prompt_tokens: int, now: float) -> float:
        """Return the predicted time to first token of a prompt admitted now, behind what is not yet read."""
        return self.service.ttft_s(prompt_tokens + self.unread_tokens(now))

    def is_in_time(self, draft: Attempt, ttft_s: float, now: float) -> bool:
        """Return whether this attempt should be tried here, given its predicted time to first token."""
        if now + ttft_s <= draft.deadline:
            return True
        unknown = draft.prompt_tokens > _UNKNOWN_RATIO * self.longest_read and not self.gate.streams
        return unknown and now <= draft.deadline

    def permit_s(self, prompt_tokens: float, output_tokens: float) -> float:
        """Return how long a full engine's permit is out for such a request, at a price that does not move with load.

        By the profile, where there is one: streams x per_token x prompt + output x TPOT(streams), so that full streams do
        one second of work a second. Else by the engine's own time as learned, and what comes beside reading where nothing is written.
        """
        prior, streams = self.settings.prior, float(self.limit)
        if not self._has_profile:
            streams = self.drain.full_streams
            beside_s = 0.0 if output_tokens else self.service.ttft_s(0)
            return beside_s + streams * self.service.engine_s(prompt_tokens, output_tokens, streams)
        tpot_s = prior.tpot_base_s + prior.tpot_per_stream_s * streams
        return streams * prior.ttft_per_token_s * prompt_tokens + output_tokens * tpot_s

    def expected_service_s(self) -> float:
        """Return the expected time that one permit is out while the gate is full."""
        prompt_tokens, streams = self.work_prompt.mean, self.drain.full_streams
        behind_s = self.service.read_behind_s(prompt_tokens, self.work_read.mean, streams)
        return behind_s + self.service.service_s(prompt_tokens, self.work_output.mean, streams)

    def drains(self) -> DrainReading:
        """Return how this engine's gate empties while it is full; read anew when something has changed."""
        read = self.drain_read
        if read is None:
            # What keeps an account's work out is mostly the account: its full gate is seen too slow, never too fast.
            share = FLOOR_SHARE if self.provider is None else 1.0
            work_s = self.permit_s(self.work_prompt.mean, self.work_output.mean)
            read = self.drain.read(self.expected_service_s(), work_s, share)
            self.drain_read = read
        return read


class Pool:
    """Engines that share work; `queued_count` attempts of `queued_work_s` and `queued_prompt_tokens` wait for them in `queues`, and `places` are expected back.

    `shares` divides their streams among lanes; None while there is one lane. `arrived`, `arrived_work_s` and
    `done_work_s` are what `warning` is fed with, next at `look_at`.
    """

    __slots__ = (
        "arrived",
        "arrived_work_s",
        "capacity_forecast",
        "done_work_s",
        "engines",
        "look_at",
        "overtaking",
        "places",
        "queued_count",
        "queued_prompt_tokens",
        "queued_work_s",
        "queues",
        "shares",
        "warning",
    )

    def __init__(self, engines: Sequence[Engine], places: Places, outlook: Outlook, now: float) -> None:
        self.warning = EarlyWarning(now)
        self.look_at = now
        self.arrived = 0
        self.arrived_work_s = self.done_work_s = 0.0
        self.engines = engines
        self.capacity_forecast = outlook
        self.places = places
        self.queues: list[LaneQueue] = []
        self.shares: LaneShares | None = None
        self.queued_count = self.queued_prompt_tokens = 0
        self.queued_work_s = 0.0
        self.overtaking = Overtaking()
        for engine in engines:
            engine.pool, engine.capacity_forecast = self, outlook


class Route:
    """The engines that serve a model, in configured order; `up` are those of them that take work now."""

    __slots__ = ("engines", "pool", "up")

    def __init__(self, engines: tuple[Engine, ...], pool: Pool) -> None:
        self.engines = engines
        self.pool = pool
        self.up = engines


class LaneQueue:
    """What waits in one lane for one route, in the lane's order; `window` where the lane forms batches.

    `offered` is the work that arrives by size, where the shortest goes first.
    """

    __slots__ = ("lane", "offered", "order", "route", "window")

    def __init__(self, lane: "Lane", route: Route, order: Order) -> None:
        self.offered = OfferedWork() if lane.settings.order == "short_first" else None
        self.lane = lane
        self.route = route
        self.order = order
        self.window: BatchWindow | None = None
        if lane.settings.window_s > 0.0:
            self.window = BatchWindow(lane.settings.window_s)

    def free(self) -> int:
        """Return how many streams of its route are free."""
        return sum([engine.limit - engine.gate.streams for engine in self.route.up])

    def opens_at(self) -> float | None:
        """Return when its batch goes, if it waits for one."""
        return None if self.window is None else self.window.look_again_at(self.free())

    def add(self, attempt: Attempt, now: float) -> None:
        """Put an attempt in its place."""
        self.order.add(attempt)
        if self.window is not None:
            self.window.entered(attempt.attempt, now, attempt.give_up_at)

    def remove(self, attempt: Attempt, *, admitted: bool) -> None:
        """Take an attempt out, wherever it stands."""
        self.order.remove(attempt)
        if self.window is not None:
            self.window.left(attempt.attempt, admitted=admitted)


class Lane:
    """One lane: its queues by route, what they hold, its accounts and its Little's law."""

    __slots__ = (
        "admitted",
        "arrived",
        "causes",
        "hints_broken",
        "hints_kept",
        "little",
        "make_order",
        "outcomes",
        "queued",
        "queued_bytes",
        "queued_tokens",
        "queues",
        "settings",
        "slo",
    )

    def __init__(self, settings: LaneSettings, make_order: MakeOrder, now: float) -> None:
        self.settings = settings
        self.make_order = make_order
        self.queues: dict[Route, LaneQueue] = {}
        self.queued = self.queued_tokens = self.queued_bytes = 0
        self.little = LittlesLaw(now)
        self.slo = SloWatch(settings, now)
        self.arrived = 0
        self.admitted = 0
        self.hints_kept = self.hints_broken = 0
        # Dictionaries, not Counters: those take 0.2 us to count one.
        self.outcomes: dict[Outcome, int] = {}
        self.causes: dict[Reason | Stage | FailureKind, int] = {}

    def queue_for(self, route: Route) -> LaneQueue:
        """Return where work of this lane waits for this route."""
        queue = self.queues.get(route)
        if queue is None:
            queue = self.queues[route] = LaneQueue(self, route, self.make_order(self.settings))
            route.pool.queues.append(queue)
        return queue

    def count(self, outcome: Outcome, cause: Cause) -> None:
        """Count how an attempt has ended."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        if cause is not None:
            self.causes[cause] = self.causes.get(cause, 0) + 1

    def enqueue(self, attempt: Attempt, now: float) -> None:
        """Put an attempt into its queue."""
        attempt.queue.add(attempt, now)
        self.queued += 1
        self.queued_tokens += attempt.prompt_tokens + attempt.output_tokens
        self.queued_bytes += attempt.body_bytes

    def dequeue(self, attempt: Attempt, *, admitted: bool) -> None:
        """Take an attempt out of its queue."""
        attempt.queue.remove(attempt, admitted=admitted)
        self.queued -= 1
        self.queued_tokens -= attempt.prompt_tokens + attempt.output_tokens
        self.queued_bytes -= attempt.body_bytes

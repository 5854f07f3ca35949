"""What the governor keeps: one record per attempt, per lane and per engine; everything mutable is here.

Only `governor/governor.py` and the modules beside it touch these; policies get numbers, observers get snapshots.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from headgate.core.events import Arrived, EngineSeen
from headgate.core.lifecycle import State
from headgate.core.limits.drain import DrainRate
from headgate.core.limits.fixed import FixedLimit
from headgate.core.limits.gate import Gate
from headgate.core.littles_law import LittlesLaw
from headgate.core.measure.ewma import Ewma
from headgate.core.queues.base import Order
from headgate.core.settings import EngineSettings, LaneSettings
from headgate.core.sizing.service_time import ServiceTime
from headgate.core.words import FailureKind, IgnoresHangups, Outcome, Reason, Stage

# How long an engine takes to notice a hang-up before it has been measured (design section 4).
PRIOR_ABORT_LAG_S = 0.3
# What one permit is taken to carry before any was given; the first admission replaces it.
_USUAL_PROMPT_TOKENS = 1000.0
_USUAL_OUTPUT_TOKENS = 256.0


class Attempt:
    """One attempt from arrival to its last release; absolute core seconds, tokens, bytes.

    It is what a queue holds (`queues.base.Held`). `arrival_number` orders equal `first_seen`; a recognised retry
    has its request's. `lane_deadline` is the lane's own, `deadline` the sooner of that and what the client allows.
    `listed_end` is where `openings` keeps it.
    """

    __slots__ = (
        "admitted_at",
        "arrival",
        "arrival_number",
        "arrived_at",
        "attempt",
        "body_bytes",
        "deadline",
        "engine",
        "expected_ttft_s",
        "fingerprint",
        "first_seen",
        "first_token_at",
        "give_up_at",
        "gone_at",
        "hold_until",
        "kv_tokens",
        "lane",
        "lane_deadline",
        "listed_end",
        "output_seen",
        "output_tokens",
        "prefill_ahead",
        "prompt_tokens",
        "recognised",
        "state",
    )

    def __init__(self, arrival: Arrived, lane: "Lane", now: float, number: int) -> None:
        self.attempt = arrival.attempt
        self.arrival = arrival
        self.arrival_number = number
        self.arrived_at = now
        self.lane = lane
        self.body_bytes = arrival.body_bytes
        self.state = State.HELD
        self.recognised = False
        self.fingerprint: int | None = None
        self.first_seen = now
        self.lane_deadline = self.deadline = now
        self.hold_until: float | None = None
        self.give_up_at = now
        self.prompt_tokens = self.output_tokens = self.kv_tokens = 0
        self.output_seen = self.prefill_ahead = 0
        self.expected_ttft_s = 0.0
        self.engine: Engine | None = None
        self.admitted_at = 0.0
        self.first_token_at: float | None = None
        self.gone_at: float | None = None
        self.listed_end: float | None = None


class DrainReading(NamedTuple):
    """Permits that end a second while a gate is full, and one standard deviation of the time that one takes."""

    per_s: float
    spread_s: float


class Engine:
    """One engine: its gate, its learned speed, its gauges, and the permits of clients who have left.

    `pace_s` is the TPOT by which `openings` foresees its work;
    `drain_read` is forgotten whenever work starts, reads its first token or ends. `position` and `is_priced` are
    `placement`'s. A `retired` engine is no longer configured and lives until its last permit ends.
    """

    __slots__ = (
        "abort_lag",
        "departing",
        "drain",
        "drain_read",
        "gate",
        "ignores",
        "is_priced",
        "pace_s",
        "position",
        "retired",
        "seen",
        "service",
        "settings",
        "up",
        "work_output",
        "work_prompt",
    )

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.up = True
        self.retired = False
        self.gate = Gate(FixedLimit(settings.max_inflight), settings.kv_tokens, settings.prefill_tokens)
        self.service = ServiceTime(settings.prior)
        self.drain = DrainRate(settings.max_inflight)
        self.drain_read: DrainReading | None = None
        self.position = 0
        self.is_priced = False
        self.pace_s = self.service.tpot_s(settings.max_inflight)
        self.abort_lag = Ewma(PRIOR_ABORT_LAG_S, memory=20.0)
        self.ignores = settings.ignores_hangups is IgnoresHangups.YES
        self.seen: EngineSeen | None = None
        self.departing: dict[int, Attempt] = {}
        self.work_prompt = Ewma(_USUAL_PROMPT_TOKENS, prior_samples=0.0)
        self.work_output = Ewma(_USUAL_OUTPUT_TOKENS, prior_samples=0.0)

    @property
    def limit(self) -> int:
        """The number of streams in force."""
        return self.gate.limit.current()

    def serves(self, model: str) -> bool:
        """Return whether this engine answers for the model."""
        return not self.settings.models or model in self.settings.models

    def expected_ttft_s(self, prompt_tokens: int) -> float:
        """Return the predicted time to first token of a prompt admitted now, behind what is not yet prefilled."""
        return self.service.ttft_s(prompt_tokens + self.gate.prefill_tokens)

    def expected_service_s(self) -> float:
        """Return the expected time that one permit is out while the gate is full."""
        return self.service.service_s(self.work_prompt.mean, self.work_output.mean, self.drain.full_streams)

    def only_prompts_block(self, place: int) -> bool:
        """Return whether so many usual attempts more could start, but for prompts that are not yet read."""
        gate = self.gate
        if gate.prefill_limit is None or gate.streams + place > self.limit:
            return False
        usual_tokens = self.work_prompt.mean + self.work_output.mean
        return gate.kv_limit is None or gate.kv_tokens + place * usual_tokens <= gate.kv_limit

    def reading_s(self, place: int) -> float:
        """Return how long the prompts before this place take to be read."""
        return self.service.ttft_s(self.gate.prefill_tokens + (place - 1) * self.work_prompt.mean)

    def drains(self) -> DrainReading:
        """Return how this engine's gate empties while it is full; read anew when something has changed."""
        read = self.drain_read
        if read is None:
            service_s = self.expected_service_s()
            read = DrainReading(self.drain.per_s(service_s), self.drain.spread_s(1.0, service_s))
            self.drain_read = read
        return read


class Lane:
    """One lane: its order, its accounts and its Little's law."""

    __slots__ = ("admitted", "arrived", "causes", "little", "order", "outcomes", "settings")

    def __init__(self, settings: LaneSettings, order: Callable[[], Order], now: float) -> None:
        self.settings = settings
        self.order = order()
        self.little = LittlesLaw(now)
        self.arrived = 0
        self.admitted = 0
        self.outcomes: Counter[Outcome] = Counter()
        self.causes: Counter[Reason | Stage | FailureKind] = Counter()

"""Frozen numbers that leave the core: observers read these and nothing else."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from millgate.core.words import FailureKind, Outcome, Reason, Role, Stage


class Capacity(NamedTuple):
    """How many streams run over all engines, and how many those that are up may run; as in `Snapshot.engines`."""

    running: int
    limit: int


@dataclass(frozen=True, slots=True)
class LittleReading:
    """Little's law of one system over one window: three independent readings and what is left between them.

    `mean_attempts` is L by time integral, `entered_per_s` lambda, `mean_stay_s` W of the `completed` stays;
    `residual` = (L - lambda x W) / L after the correction for work still in flight: 0 but for leaks.
    """

    window_s: float
    mean_attempts: float
    entered_per_s: float
    completed: int
    mean_stay_s: float
    residual: float


@dataclass(frozen=True, slots=True)
class LittleSnapshot:
    """Little's law of whole stays and of their two parts.

    `whole` is from the arrival of an attempt that is queued or admitted until it is through: refused, given up, or its
    permit released. `queue` is its time in a queue (a second try is queued again), `engine` that from an admission to the
    release of the permit. L of the whole is the sum of its parts; lambda of a part counts only what came to it.
    """

    whole: LittleReading
    queue: LittleReading
    engine: LittleReading


class AlarmSignal(StrEnum):
    """What raised an alarm."""

    LOAD = "load"
    ACCELERATION = "acceleration"
    BACKLOG = "backlog"


class Alarm(NamedTuple):
    """One alarm with its evidence, as it was when `value` passed `threshold` at `raised_at`.

    `since` is when it began to move. For `load` value and threshold are the excess in seconds of the whole capacity,
    for `acceleration` shares of all streams per second, for `backlog` shares of what may wait. `words` says it in a
    sentence or two; times are core seconds.
    """

    signal: AlarmSignal
    value: float
    threshold: float
    since: float
    raised_at: float
    words: str


class WarningReading(NamedTuple):
    """The signals as numbers.

    `load` (last seconds), `calm_load` (last minutes) and `noise` (standard deviation of one second) are shares of
    capacity; `excess` and `excess_threshold` are what has come above the calm of late and where that is an alarm, in
    seconds of capacity; `occupancy`, its `trend` (growth per second, of the last seconds) and its `acceleration` (the trend less
    that of the last minutes) are shares of the limit, with what is queued on top, and `acceleration_threshold` is where the
    latter is an alarm; `backlog_s` is how long what waits takes to serve;
    `time_to_full_s` is infinite unless more arrives than is served.
    """

    load: float
    calm_load: float
    noise: float
    excess: float
    excess_threshold: float
    occupancy: float
    trend: float
    acceleration: float
    acceleration_threshold: float
    backlog_s: float
    time_to_full_s: float


class Quantiles(NamedTuple):
    """Upper quantiles of one time, in seconds, right within 5 %: two that are always told, and that which the lane promises."""

    p95: float
    p99: float
    promised: float


class Promise(NamedTuple):
    """What a lane promises of one time: so many seconds at most, to this share of its requests."""

    time_s: float
    share: float


class Attainment(NamedTuple):
    """One window: what ended in it, the share of requests that was good (1 of nothing), and how fast the budget burns.

    `answers` were admitted and judged. `requests` are those and the `refused`, each counted once however often it was
    tried; what a rule refuses (a quota, a tenant's limit, a size) is none of them. `ttft_share` and `tpot_share` are
    the shares of what was streamed (and, for TPOT, judged) within either objective; `burn` is the share of misses over
    the share that the target allows: 1 uses up exactly the budget. Of a lane whose objectives name different quantiles
    it is that of the lane's target or of the stricter objective, whichever burns faster.
    """

    window_s: float
    answers: int
    requests: int
    refused: int
    good_share: float
    ttft_share: float
    tpot_share: float
    burn: float


class SloReading(NamedTuple):
    """One lane against its objective; `ttft` and `tpot` are None until something was streamed. `target_share` is to be good.

    `ttft_promise` and `tpot_promise` are its objectives, the latter None where it has none.
    `is_burning` is the alarm of both windows; `advice` is a sentence then, and empty otherwise.
    """

    ttft: Quantiles | None
    tpot: Quantiles | None
    short: Attainment
    long: Attainment
    target_share: float
    ttft_promise: Promise
    tpot_promise: Promise | None
    is_burning: bool
    advice: str


class ErrorReading(NamedTuple):
    """The errors of one kind of estimate.

    `bias` is sum of actual / sum of estimated - 1: 0.1 says that the work is 10 % more than is reckoned with.
    `p90` is the 90th percentile of |ln(actual / estimated)|: 0.69 says that nine estimates in ten are within a
    factor of two. (A mean of logarithms would be no bias: a right mean lies above most of a skewed law.)
    """

    samples: float
    bias: float
    p90: float


class PoolSnapshot(NamedTuple):
    """One pool's early warning: the names of its engines, the signals as numbers, and its alarms, the oldest first."""

    engines: tuple[str, ...]
    warning: WarningReading
    alarms: tuple[Alarm, ...]


class TenantSnapshot(NamedTuple):
    """One tenant's attempts and requests since it became known: their ratio is its amplification; `others` stands for all not known apart."""

    tenant: str
    attempts: int
    requests: int


@dataclass(frozen=True, slots=True)
class LaneSnapshot:
    """One lane now and since start; `headroom` counts streams that it does not lend; counts are attempts, ages and waits seconds.

    `hints_kept` and `hints_broken` count returns on time: admitted within max(0.5 s, 20 % of the hint), or not.
    """

    name: str
    queued: int
    queued_tokens: int
    queued_bytes: int
    oldest_queued_s: float
    headroom: int
    expected_wait_s: float
    running: int
    arrived: int
    admitted: int
    outcomes: tuple[tuple[Outcome, int], ...]
    yields: tuple[tuple[Reason, int], ...]
    gone: tuple[tuple[Stage, int], ...]
    failures: tuple[tuple[FailureKind, int], ...]
    little: LittleSnapshot
    slo: SloReading
    hints_kept: int = 0
    hints_broken: int = 0


@dataclass(frozen=True, slots=True)
class AccountReading:
    """A provider's account as it is reckoned here, and the breaker before it.

    `left_share` is the least that is left of any of its limits, as a share of the burst (negative in debt, 1 without limits);
    `others_share` the most that others seem to take of a limit's rate; `paused_s` how long nothing is sent because the
    provider has refused.
    """

    left_share: float
    others_share: float
    paused_s: float
    breaker_open: bool


class QuotaLevel(NamedTuple):
    """One quota: the least share that is left of its burst, of the bucket for all or of the owners last served, and how many owners."""

    name: str
    left_share: float
    owners: int


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """One engine and its gate: use and limit of every meter (None where a meter is off), learned speed, gauges.

    `prefill_share` is the part of its time that prompts of paced lanes may take. `departing` counts permits whose
    client has left while the engine may still be working for it. `adapter_loads` counts adapters that it had to load,
    as placement sees it. Gauges are None when unknown or stale. `account` is None but for a provider's account. It gets
    one prompt at a time while it is `silent_s`: for so long it let a prompt wait until its time ran out, and read none.
    """

    name: str
    up: bool
    running: int
    departing: int
    limit: int
    kv_tokens: int
    kv_limit: int | None
    prefill_tokens: int
    prefill_limit: int | None
    prefill_share: float | None
    drain_per_s: float
    expected_ttft_s: float
    expected_tpot_s: float
    expected_service_s: float
    abort_lag_s: float
    ignores_hangups: bool
    seen_running: int | None
    seen_waiting: int | None
    seen_kv_share: float | None
    seen_preemptions: int | None
    seen_age_s: float | None
    account: AccountReading | None = None
    role: Role = Role.UNIFIED
    adapter_loads: int = 0
    silent_s: float = 0.0

    @property
    def takes_requests(self) -> bool:
        """Whether it is up, and not only for prompts that others answer."""
        return self.up and self.role is not Role.PREFILL

    @property
    def is_shut(self) -> bool:
        """Whether the breaker of its account is open: it gets single tries only."""
        return self.account is not None and self.account.breaker_open


@dataclass(frozen=True, slots=True)
class RetrySnapshot:
    """Returning work: attempts over requests is the amplification.

    `labelled` arrived with a retry label, `recognised` matched a record or a ticket and got its age back;
    `appointments` are refused clients that are expected to return, `early` counts returns before their hint. `amplification` is
    attempts over requests of the tenants known apart, since each became known; `amplification_1m` and `_10m` are those of
    all within a minute and ten, 1 of nothing; `budget` and `budget_spent` count the retries that may pass, and
    those that were charged, in ten seconds (of several pools, the fastest). None while there is no retry budget.
    `attendance_first` and `attendance_returned` are the shares of clients that return when told, told for the first time
    or again; of several pools the least.
    """

    attempts: int
    labelled: int
    recognised: int
    early: int
    appointments: int
    records: int
    appointments_dropped: int
    amplification: float | None = None
    amplification_1m: float = 1.0
    amplification_10m: float = 1.0
    budget: float | None = None
    budget_spent: int | None = None
    attendance_first: float = 1.0
    attendance_returned: float = 1.0


class SharedNumber(NamedTuple):
    """What this replica holds and wants of one number that the replicas of a cluster share, in the number's own unit.

    `kind` (streams, kv, prefill of an engine; rate and burst of a quota; account_rate, account_burst of a provider's
    account; tenant, a tenant's streams; retries) and `names` say which. `whole` is the limit; `used` is out now,
    `wanted` could be used at once, `used` included, and `floor` is the least with which one request can go. What is out
    may last `lingers_s`; the engine itself says that `seen` run, `seen_age_s` ago. The first request that waits for it
    came `waits_s` ago, 0 where none waits.
    """

    kind: str
    names: tuple[str, ...]
    whole: float
    used: float
    wanted: float
    floor: float
    lingers_s: float = 0.0
    seen: float | None = None
    seen_age_s: float = 0.0
    waits_s: float = 0.0


class PoolLine(NamedTuple):
    """What waits for one pool of engines: how many are queued, and how many seconds of a stream they and those told to come back take.

    `came` and `told` are weights of clients: who came here when told, by any replica, and who was told here. The line
    of a quota is named `quota/NAME`; its `queued` is how much is left, and `work_s` how much those told take beyond that. Of the retry
    budget's, `retries/`, `work_s` is what admissions here have earned. Of a tenant's, `tenant/NAME`, `queued` is how
    many streams it has, and `work_s` how many it has promised beyond those that are free. `lines/` has the weights of
    all lines of quotas and tenants.
    """

    pool: str
    queued: int
    work_s: float
    came: float = 0.0
    told: float = 0.0


class SharedUse(NamedTuple):
    """What one replica tells the others."""

    numbers: tuple[SharedNumber, ...]
    lines: tuple[PoolLine, ...]


class LegsSnapshot(NamedTuple):
    """Requests of two legs, so many `begun`, and the transfers of their prompts' KV from engine to engine.

    `fetched` transfers carried `tokens` in `transfer_s`, the first step after them included, and of whole answers as
    expected. Of the others `lost` came to nothing, so that the second engine read the prompt itself or failed with the
    first, and `expired` were kept to the end of the lease.
    """

    begun: int = 0
    fetched: int = 0
    lost: int = 0
    expired: int = 0
    tokens: int = 0
    transfer_s: float = 0.0


_NO_LEGS: Final = LegsSnapshot()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole core at one instant.

    Contexts of live sessions take `working_set_share` of what may be reserved of the engines' memory. Of answered
    prompts `predicted_cached_tokens` were believed to be held where they were read, and engines that tell
    `found_cached_tokens` of them; `regret_tokens` were read although another engine held them. `legs_by_role` counts
    the legs of all requests by the role of the engine that each began on. It `is_served` while an engine that is up
    takes requests, and one reads for it where it cannot itself.
    """

    now: float
    draining: bool
    is_served: bool
    lanes: tuple[LaneSnapshot, ...]
    engines: tuple[EngineSnapshot, ...]
    retries: RetrySnapshot
    good_output_tokens: int
    wasted_prompt_tokens: int
    wasted_output_tokens: int
    bytes_per_token: tuple[tuple[str, float], ...]
    mean_output_tokens: tuple[tuple[str, float], ...]
    prompt_error: ErrorReading
    output_error: ErrorReading
    pools: tuple[PoolSnapshot, ...]
    tenants: tuple[TenantSnapshot, ...]
    little: LittleSnapshot
    quotas: tuple[QuotaLevel, ...] = ()
    live_sessions: int = 0
    working_set_share: float = 0.0
    predicted_cached_tokens: int = 0
    found_cached_tokens: int = 0
    regret_tokens: int = 0
    legs: LegsSnapshot = _NO_LEGS
    legs_by_role: tuple[tuple[Role, int], ...] = ()

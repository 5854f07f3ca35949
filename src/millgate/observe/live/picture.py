"""What stands on the page at one instant: records that become JSON objects with the same names.

Times called `at` or `since` are seconds since the epoch, all others durations in seconds.
"""

from dataclasses import dataclass

from millgate.core.snapshot import EngineSnapshot, LittleSnapshot, RetrySnapshot
from millgate.observe.live.banner import Banner
from millgate.observe.live.decision_history import HistoryPoint, Rates
from millgate.observe.live.recent import DecisionRow
from millgate.observe.traffic_records import EngineLately, ModelTraffic, TenantTraffic


@dataclass(frozen=True, slots=True)
class PromisePicture:
    """One time that a lane promises at a quantile such as `p95`, and what that quantile was; None until something was streamed."""

    quantile: str
    promised_s: float
    measured_s: float | None


@dataclass(frozen=True, slots=True)
class ObjectivePicture:
    """A lane against its objective: the share that was good of `requests` in the short window, and in the long one.

    A request that was refused for want of capacity, and was not served later, is one of the `refused` in the short window.

    `target` is the quantile that is to be good, `p95`. `advice` is a sentence while `is_burning`, and empty otherwise;
    `tpot` is None where none is promised.
    """

    requests: int
    refused: int
    good_share: float
    long_requests: int
    long_good_share: float
    target: str
    ttft: PromisePicture
    tpot: PromisePicture | None
    is_burning: bool
    advice: str


@dataclass(frozen=True, slots=True)
class LanePicture:
    """One lane: what waits, against which deadline, what a newcomer would be told, and how it went lately.

    `expected_wait_s` is a newcomer's wait: what it would be told where it would be queued, else what its line predicts.
    `stream_limit` is what all engines that are up may run, `other_running` what runs for other lanes; `headroom`
    are the streams that it lends to no other. `window_s` is the mean time that its batch window queued requests for
    company lately, None where it queued none.
    """

    name: str
    queued: int
    queued_tokens: int
    oldest_queued_s: float
    expected_wait_s: float
    deadline_s: float
    newcomer: str
    running: int
    other_running: int
    stream_limit: int
    headroom: int
    window_s: float | None
    rates: Rates
    little: LittleSnapshot
    trend_per_s: float
    acceleration_per_s2: float
    objective: ObjectivePicture


@dataclass(frozen=True, slots=True)
class AlarmPicture:
    """An early warning with its evidence in words; `since` is when its signal began to move, or when it cleared."""

    signal: str
    words: str
    since: float


@dataclass(frozen=True, slots=True)
class SignalsPicture:
    """The early warning's signals by name (core/snapshot says their units); times that are infinite are None."""

    load: float
    calm_load: float
    occupancy: float
    trend: float
    acceleration: float
    time_to_full_s: float | None


@dataclass(frozen=True, slots=True)
class PoolPicture:
    """One pool of engines, its early warning, and the alarms that are raised, the oldest first."""

    engines: tuple[str, ...]
    signals: SignalsPicture
    alarms: tuple[AlarmPicture, ...]


@dataclass(frozen=True, slots=True)
class EnginePicture:
    """One engine as the core sees it, and how it did lately; `gap_deviation_s` is how far tokens are from even.

    None where nothing was streamed, or for an engine beyond those that are told apart.
    """

    seen: EngineSnapshot
    lately: EngineLately | None
    gap_deviation_s: float | None


@dataclass(frozen=True, slots=True)
class TenantPicture:
    """One tenant: its counts, its share of all tokens served, and of its answers that were good (1 of none).

    `amplification` is attempts over requests, None where the core does not count it for this tenant.
    """

    served: TenantTraffic
    tokens_share: float
    good_share: float
    amplification: float | None


@dataclass(frozen=True, slots=True)
class ReturnsPicture:
    """Work that comes back; `hints_kept` of `hints_followed` were admitted when they had been told to come."""

    retries: RetrySnapshot
    hints_followed: int
    hints_kept: int


@dataclass(frozen=True, slots=True)
class SessionsPicture:
    """How many sessions are live, and which part of the engines' memory their contexts take; None where no engine tells its memory.

    `found_share` of the prompt tokens that were believed to be in caches were there, since the start; None where none
    was believed to be.
    """

    live: int
    memory_share: float | None
    found_share: float | None


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything on the page; `host` is the machine's name, `little` Little's law of all lanes, `history` the newest whole step of the history."""

    at: float
    host: str
    banner: Banner
    rates: Rates
    lanes: tuple[LanePicture, ...]
    pools: tuple[PoolPicture, ...]
    cleared: AlarmPicture | None
    engines: tuple[EnginePicture, ...]
    sessions: SessionsPicture
    little: LittleSnapshot
    returns: ReturnsPicture
    tenants: tuple[TenantPicture, ...]
    models: tuple[ModelTraffic, ...]
    good_output_tokens: int
    wasted_output_tokens: int
    decisions: tuple[DecisionRow, ...]
    history: HistoryPoint | None

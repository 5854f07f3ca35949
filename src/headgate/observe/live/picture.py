"""What stands on the page at one instant: records that become JSON objects with the same names.

Times called `at` or `since` are seconds since the epoch, all others durations in seconds.
"""

from dataclasses import dataclass

from headgate.core.snapshot import EngineSnapshot, LittleSnapshot, RetrySnapshot
from headgate.observe.live.banner import Banner
from headgate.observe.live.rates import Rates
from headgate.observe.live.recent import DecisionRow
from headgate.observe.live.trail import TrailPoint


@dataclass(frozen=True, slots=True)
class ObjectivePicture:
    """A lane against its objective: the share that was good of `answers` in the short window, and in the long one.

    `advice` is a sentence while `is_burning`, and empty otherwise; the 95th percentiles are None until something
    was streamed.
    """

    answers: int
    good_share: float
    long_answers: int
    long_good_share: float
    ttft_p95_s: float | None
    tpot_p95_s: float | None
    is_burning: bool
    advice: str


@dataclass(frozen=True, slots=True)
class LanePicture:
    """One lane: what waits, against which deadline, what a newcomer would be told, and how it went lately.

    `stream_limit` is what all engines that are up may run, `other_running` what runs for other lanes; `headroom`
    are the streams that are lent to nobody, None while the core does not say.
    """

    name: str
    held: int
    held_tokens: int
    oldest_held_s: float
    expected_wait_s: float
    deadline_s: float
    newcomer: str
    running: int
    other_running: int
    stream_limit: int
    headroom: int | None
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
    backlog_s: float
    time_to_full_s: float | None


@dataclass(frozen=True, slots=True)
class PoolPicture:
    """One pool of engines and its early warning; `alarm` None while none is raised."""

    engines: tuple[str, ...]
    signals: SignalsPicture
    alarm: AlarmPicture | None


@dataclass(frozen=True, slots=True)
class EnginePicture:
    """One engine as the core sees it; `tpot_deviation_s` is None while the core does not say."""

    seen: EngineSnapshot
    tpot_deviation_s: float | None


@dataclass(frozen=True, slots=True)
class TenantPicture:
    """One tenant: attempts over requests is its amplification."""

    tenant: str
    attempts: int
    requests: int
    amplification: float


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything on the page; `trail` is the newest whole step of the history."""

    at: float
    banner: Banner
    rates: Rates
    lanes: tuple[LanePicture, ...]
    pools: tuple[PoolPicture, ...]
    cleared: AlarmPicture | None
    engines: tuple[EnginePicture, ...]
    retries: RetrySnapshot
    amplification: float
    tenants: tuple[TenantPicture, ...]
    good_output_tokens: int
    wasted_output_tokens: int
    decisions: tuple[DecisionRow, ...]
    trail: TrailPoint | None

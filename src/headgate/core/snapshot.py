"""Frozen numbers that leave the core: observers read these and nothing else."""

from dataclasses import dataclass

from headgate.core.words import FailureKind, Outcome, Reason, Stage


@dataclass(frozen=True, slots=True)
class LittleSnapshot:
    """Little's law over one window: three independent readings and what is left between them.

    `mean_running` is L by time integral, `admitted_per_s` lambda, `mean_stay_s` W of what completed;
    `residual` = (L - lambda x W) / L after the correction for work still in flight: 0 but for leaks.
    """

    window_s: float
    mean_running: float
    admitted_per_s: float
    mean_stay_s: float
    residual: float


@dataclass(frozen=True, slots=True)
class LaneSnapshot:
    """One lane now and since start; counts are attempts, ages and waits seconds."""

    name: str
    held: int
    held_tokens: int
    held_bytes: int
    oldest_held_s: float
    expected_wait_s: float
    running: int
    arrived: int
    admitted: int
    outcomes: tuple[tuple[Outcome, int], ...]
    yields: tuple[tuple[Reason, int], ...]
    gone: tuple[tuple[Stage, int], ...]
    failures: tuple[tuple[FailureKind, int], ...]
    little: LittleSnapshot


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """One engine and its gate: use and limit of every meter (None where a meter is off), learned speed, gauges.

    `departing` counts permits whose client has left while the engine may still be working for it. Gauges are
    None when unknown or stale.
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
    drain_per_s: float
    expected_ttft_s: float
    expected_tpot_s: float
    expected_service_s: float
    abort_lag_s: float
    ignores_hangups: bool
    seen_running: int | None
    seen_waiting: int | None
    seen_kv_share: float | None
    seen_age_s: float | None


@dataclass(frozen=True, slots=True)
class RetrySnapshot:
    """Returning work: attempts over requests is the amplification.

    `labelled` arrived with a retry label, `recognised` matched an entry or a ticket and got its place back;
    `places` are yielded clients expected to return, `early` those who came before their hint.
    """

    attempts: int
    labelled: int
    recognised: int
    early: int
    places: int
    entries: int
    places_dropped: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole core at one instant."""

    now: float
    draining: bool
    lanes: tuple[LaneSnapshot, ...]
    engines: tuple[EngineSnapshot, ...]
    retries: RetrySnapshot
    good_output_tokens: int
    wasted_prompt_tokens: int
    wasted_output_tokens: int
    bytes_per_token: tuple[tuple[str, float], ...]
    mean_output_tokens: tuple[tuple[str, float], ...]

"""What passed, as it is read: distributions and counts by lane, engine, tenant and model at one instant."""

from dataclasses import dataclass

from millgate.observe.histogram import Histogram


@dataclass(frozen=True, slots=True)
class LaneLately:
    """One lane in about the last minute; None before there is a sample.

    `window_s` is the mean time in its batch window, of those queued for it. `tpot` is by stream: its mean in seconds, its
    variance between streams in seconds squared.
    """

    window_s: float | None
    tpot_mean_s: float | None
    tpot_variance: float | None


@dataclass(frozen=True, slots=True)
class LaneTraffic:
    """One lane's times in seconds, each counted from arrival, and the hints that its refusals gave.

    `window` is the part of a wait that was for the company of a batch, of requests queued for it. Of clients that
    had been told when to come, `hint_return` is how far from that time they were back, and `hint_error` how far from
    it they were admitted, if they were. `clipped` and `demoted` count what was cut to fewer tokens or run in another
    lane so that it need not be refused, by the lane that was asked for.
    """

    name: str
    wait: Histogram
    window: Histogram
    ttft: Histogram
    total: Histogram
    hint: Histogram
    hint_return: Histogram
    hint_error: Histogram
    clipped: int
    demoted: int
    lately: LaneLately


@dataclass(frozen=True, slots=True)
class EngineLately:
    """One engine in about the last minute: means in seconds, variances in seconds squared; None before there is one.

    `ttft` is from admission, by stream, `tpot` by stream, `gap` by token. `prefix_hit_share` is the share of prompt
    tokens that came from its cache, None while it never said.
    """

    ttft_mean_s: float | None
    ttft_variance: float | None
    tpot_mean_s: float | None
    tpot_variance: float | None
    gap_mean_s: float | None
    gap_variance: float | None
    prefix_hit_share: float | None


@dataclass(frozen=True, slots=True)
class EngineTraffic:
    """One engine's times in seconds: `ttft` from admission, `tpot` per answer, `gap` per token; its attempts that `ended`, and of these `failed`; and its cache.

    `cached_tokens` of `prompt_tokens` came from its cache, since it first spoke of that; None while it never did.
    """

    name: str
    ttft: Histogram
    tpot: Histogram
    gap: Histogram
    ended: int
    failed: int
    prompt_tokens: int | None
    cached_tokens: int | None
    lately: EngineLately


@dataclass(frozen=True, slots=True)
class TenantTraffic:
    """One tenant's counts since it has its label; `judged` are its answers, good, late or failed by an engine.

    The quantiles are of its streams' times to the first token in seconds, None before the first.
    """

    name: str
    attempts: int
    yields: int
    judged: int
    good: int
    prompt_tokens: int
    output_tokens: int
    ttft_p95_s: float | None
    ttft_p99_s: float | None


@dataclass(frozen=True, slots=True)
class ModelTraffic:
    """One model, as clients name it, where its engines say what came from their caches."""

    name: str
    prompt_tokens: int
    cached_tokens: int
    prefix_hit_share: float


@dataclass(frozen=True, slots=True)
class TrafficSnapshot:
    """All distributions at one instant; at most `MOST_*` names of each kind, and `other`."""

    lanes: tuple[LaneTraffic, ...]
    engines: tuple[EngineTraffic, ...]
    tenants: tuple[TenantTraffic, ...]
    models: tuple[ModelTraffic, ...] = ()

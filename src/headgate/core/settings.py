"""What the core is told before it decides: frozen numbers, built from configuration by `wiring`, never read here."""

from dataclasses import dataclass, field

from headgate.core.words import DeadlineFrom, IgnoresHangups


@dataclass(frozen=True, slots=True)
class ServicePrior:
    """What is believed of an engine's speed before it has served anything.

    TTFT = `ttft_base_s` + `ttft_per_token_s` x prompt tokens; TPOT = `tpot_base_s` + `tpot_per_stream_s` x
    running streams. The defaults are a mid-size model on one data-centre GPU, rounded; a handful of answers
    replaces them.
    """

    ttft_base_s: float = 0.05
    ttft_per_token_s: float = 0.0001
    tpot_base_s: float = 0.015
    tpot_per_stream_s: float = 0.0001


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """One engine and the hard cap in front of it; None turns a meter off.

    `max_inflight` counts streams, `kv_tokens` reserved prompt and output tokens, `prefill_tokens` prompt tokens
    not yet prefilled. `models` empty means that it serves whatever it is asked for.
    """

    name: str
    max_inflight: int
    kv_tokens: int | None = None
    prefill_tokens: int | None = None
    models: tuple[str, ...] = ()
    ignores_hangups: IgnoresHangups = IgnoresHangups.AUTO
    prior: ServicePrior = field(default_factory=ServicePrior)


@dataclass(frozen=True, slots=True)
class LaneSettings:
    """One class of traffic: what good means, when it is refused, and how much of it may wait.

    `tpot_slo_s` None judges no TPOT. `max_queue` None bounds the count by predicted wait alone (and by
    `QUEUE_COUNT_CEILING`); 0 holds nothing: the pure primitive, cap and yield. `max_wait_s` bounds the predicted
    wait beside the deadline. `max_queue_tokens` and `max_queue_bytes` bound what waits in tokens and memory.
    """

    name: str
    ttft_slo_s: float = 10.0
    tpot_slo_s: float | None = None
    deadline_s: float = 10.0
    deadline_from: DeadlineFrom = DeadlineFrom.FIRST_ATTEMPT
    order: str = "arrival"
    max_queue: int | None = None
    max_queue_tokens: int | None = None
    max_queue_bytes: int = 256 * 1024 * 1024
    max_wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that the core may be told; one lane and one engine are the smallest legal set."""

    lanes: tuple[LaneSettings, ...]
    engines: tuple[EngineSettings, ...]
    max_places: int = 100_000

"""What the core is told before it decides: frozen numbers, built from configuration by `wiring`, never read here."""

from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from millgate.core.words import (
    DeadlineFrom,
    IgnoresHangups,
    KvTransfer,
    LaneTakes,
    OutputCharge,
    QuotaKind,
    Role,
)

MINUTE_S: Final = 60.0
DAY_S: Final = 86400.0
MOST_TENANTS: Final = 1_000
"""Tenants that are known apart where what each did is remembered; beyond it the longest at rest is forgotten, or they share (INV-5)."""
_COUNT_OUTPUT: Final = (QuotaKind.TPM, QuotaKind.TPD, QuotaKind.OTPM)
_DAILY: Final = (QuotaKind.RPD, QuotaKind.TPD)

Scope = Literal["tenant", "model", "lane"]
LimitKind = Literal["fixed", "slo_gradient", "aimd"]
LEAST_LIMIT: Final = 4
"""The usual minimum of a limit: the least that the default hard cap can be, too (docs/design.md section 10)."""
LONGEST_HINT_S: Final = MINUTE_S
"""Hints stay in a range that every SDK honours: openai gives up above 120 s and treats 0 as absent (wire.md B1)."""
KV_LEASE_S: Final = 30.0
"""How long an engine keeps a prompt that it has read for another: vLLM's `kv_lease_duration`."""
ABORT_LAG_S: Final = 0.3
"""How long an engine takes to notice a hang-up before it has been measured: vLLM's (docs/design.md section 4)."""
TARGET_SHARE: Final = 0.95
"""The share of requests that is to be in time where an objective names no quantile: p95."""


@dataclass(frozen=True, slots=True)
class ServicePrior:
    """What is believed of an engine's speed before it has served anything.

    TTFT = `ttft_base_s` + `ttft_per_token_s` x prompt tokens; TPOT = `tpot_base_s` + `tpot_per_stream_s` x
    running streams. The defaults are a mid-size model on one data-centre GPU, rounded; a handful of answers
    replaces them. What is `certain` is believed from the first request on: without it an idle engine is tried with
    a prompt longer than any that it has read, whatever is predicted.
    """

    ttft_base_s: float = 0.05
    ttft_per_token_s: float = 0.0001
    tpot_base_s: float = 0.015
    tpot_per_stream_s: float = 0.0001
    certain: bool = False


@dataclass(frozen=True, slots=True)
class QuotaLimit:
    """So much of one kind in a minute (a day for `rpd` and `tpd`), and what may be saved up.

    `burst_s` is the time over which unused quota is saved, None for the whole minute or day, as providers do. `output`
    says something of a limit that counts output: `tpm`, `tpd` or `otpm`. `count_cached` False leaves prompt tokens out
    that the engine had in its cache.
    """

    kind: QuotaKind
    amount: float
    burst_s: float | None = None
    output: OutputCharge = OutputCharge.EXPECTED
    count_cached: bool = True

    @property
    def period_s(self) -> float:
        """The time that `amount` is for."""
        return DAY_S if self.kind in _DAILY else MINUTE_S

    @property
    def rate_per_s(self) -> float:
        """How much is added each second."""
        return self.amount / self.period_s

    @property
    def charges_as_made(self) -> bool:
        """Whether it counts output, and only once that is made."""
        return self.output is OutputCharge.PRODUCED and self.kind in _COUNT_OUTPUT

    @property
    def is_final(self) -> bool:
        """Whether it counts output, and a charge stays what it was at first."""
        return self.output is OutputCharge.LARGER and self.kind in _COUNT_OUTPUT

    @property
    def burst(self) -> float:
        """How much a full bucket holds, at least one request or token."""
        return self.amount if self.burst_s is None else max(1.0, self.rate_per_s * self.burst_s)


@dataclass(frozen=True, slots=True)
class QuotaRule:
    """One limit and whom it holds: None is every tenant; each value of a scope named in `each` has a bucket of its own."""

    name: str
    limit: QuotaLimit
    tenant: str | None = None
    model: str | None = None
    lane: str | None = None
    each: tuple[Scope, ...] = ()


@dataclass(frozen=True, slots=True)
class AccountSettings:
    """A provider's limits on everything that is sent to one engine; of each kind at most one."""

    limits: tuple[QuotaLimit, ...]


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """What moves the limit of one engine below its hard cap, and how far.

    `tpot_slo_s` is the tightest that its lanes promise, or its own; `tpot_share` of the answers are steered to keep it.
    `start` None begins where the prior says that the SLO is met, or at the hard cap where there is no SLO.
    """

    kind: LimitKind = "fixed"
    tpot_slo_s: float | None = None
    tpot_share: float = TARGET_SHARE
    start: int | None = None
    minimum: int = LEAST_LIMIT


class Labels(NamedTuple):
    """Where an engine stands; a label that is "" is not known. It hands prompts over within its `required` host, rack or zone alone, where that is not ""."""

    host: str = ""
    rack: str = ""
    zone: str = ""
    required: str = ""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """One engine and the hard cap in front of it; None turns a meter off.

    `max_inflight` counts streams, `kv_tokens` reserved prompt and output tokens, `prefill_tokens` prompt tokens not yet
    prefilled. `models` empty means that it serves whatever it is asked for. It is also asked for its `adapters`, of
    which `adapter_slots` are loaded at once (None: as many as it says itself), each in `adapter_load_s`; not for those
    that it `lacks`. A whole answer whose client names no bound is taken to have at most `longest_answer` tokens. With
    `own_key` it is sent no client's key, but the gate's or none. A new one with `is_up` false takes no work before it is said to
    be up. One whose `role` is prefill reads prompts for those that decode, and keeps each for `kv_lease_s` until it is
    fetched; `labels` say how far it is to them. A prompt goes over by `kv_transfer`, which both engines must have
    alike. An `overflow` one gets only what no other has room for in time (`LaneSettings.overflow_after_s`).
    """

    name: str
    max_inflight: int
    kv_tokens: int | None = None
    prefill_tokens: int | None = None
    models: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    adapter_slots: int | None = None
    lacks: frozenset[str] = frozenset()
    adapter_load_s: float = 0.5
    longest_answer: int = 32_768
    ignores_hangups: IgnoresHangups = IgnoresHangups.AUTO
    abort_lag_s: float = ABORT_LAG_S
    account: AccountSettings | None = None
    own_key: bool = False
    limit: LimitSettings = LimitSettings()
    prior: ServicePrior = field(default_factory=ServicePrior)
    is_up: bool = True
    role: Role = Role.UNIFIED
    kv_lease_s: float = KV_LEASE_S
    labels: Labels = field(default_factory=Labels)
    kv_transfer: KvTransfer = KvTransfer.NIXL
    overflow: bool = False

    @property
    def only_reads(self) -> bool:
        """Whether it reads prompts for other engines, and answers nothing itself."""
        return self.role is Role.PREFILL

    @property
    def needs_reader(self) -> bool:
        """Whether it answers nothing of which another engine does not read the prompt: SGLang's refuses what names no room."""
        return self.role is Role.DECODE and self.kv_transfer is KvTransfer.SGLANG


@dataclass(frozen=True, slots=True)
class LaneSettings:
    """One class of traffic: what good means, when it is refused, and how much of it may wait.

    `tpot_slo_s` None judges no TPOT. `ttft_share` and `tpot_share` are the shares of requests that are to keep either,
    above 0 and below 1. `max_queue` None bounds the count by predicted wait alone (and by `Settings.max_queued`); 0
    holds nothing: the pure primitive, cap and yield. `max_wait_s` bounds the predicted wait beside the deadline.
    `hold_due_s` is how long a client that returns on time is queued where nothing else is (None: a fifth of its hint, a
    second at least; 0: never). `max_queue_tokens` and `max_queue_bytes` bound what waits in tokens and memory. `fair`
    serves tenants by the tokens that they have had; `max_overtakes` bounds short work first (None: its age alone does).
    `share` weighs the lane among the others, no other lane may borrow its `headroom`, a smaller `band` goes first, each
    engine is given `prefill_per_s` of its prompt tokens a second at most (None: any number), `window_s` forms batches.
    Under pressure work may be tried in the lane `demote`, or cut to `clip_tokens`. It `takes` requests that name no
    lane: long prompts, or batch work, that take an idle engine longer than `over_s`. Its requests wait
    `overflow_after_s` for other engines before one for overflow gets them; infinite where they never go there.
    """

    name: str
    ttft_slo_s: float = 10.0
    tpot_slo_s: float | None = None
    ttft_share: float = TARGET_SHARE
    tpot_share: float = TARGET_SHARE
    deadline_s: float = 10.0
    deadline_from: DeadlineFrom = DeadlineFrom.FIRST_ATTEMPT
    order: str = "arrival"
    max_queue: int | None = None
    max_queue_tokens: int | None = None
    max_queue_bytes: int = 256 * 1024 * 1024
    max_wait_s: float | None = None
    hold_due_s: float | None = None
    fair: bool = False
    max_overtakes: int | None = None
    share: float = 1.0
    headroom: int = 0
    band: int = 0
    prefill_per_s: float | None = None
    window_s: float = 0.0
    demote: str | None = None
    clip_tokens: int | None = None
    takes: LaneTakes | None = None
    over_s: float = 0.0
    overflow_after_s: float = 0.0

    @property
    def target_share(self) -> float:
        """The share of requests that is to be good, within every objective of the lane: the smaller of the two."""
        return self.ttft_share if self.tpot_slo_s is None else min(self.ttft_share, self.tpot_share)


@dataclass(frozen=True, slots=True)
class TenantSettings:
    """One tenant's weight among the tenants of a lane, and how many streams it may have at once (None: any)."""

    name: str
    weight: float = 1.0
    max_inflight: int | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that the core may be told; one lane and one engine are the smallest legal set.

    `max_queued` bounds what waits over all lanes: at 10,000 even a thousand departures a second mean ten seconds.
    With `observe` nothing is refused but what `hard_cap`, if set, keeps out; every refusal that a protecting gate
    would have spoken is told in `Admit.would`.
    """

    lanes: tuple[LaneSettings, ...]
    engines: tuple[EngineSettings, ...]
    max_appointments: int = 100_000
    max_queued: int = 10_000
    tenants: tuple[TenantSettings, ...] = ()
    quotas: tuple[QuotaRule, ...] = ()
    retry_budget: bool = True
    observe: bool = False
    hard_cap: bool = False

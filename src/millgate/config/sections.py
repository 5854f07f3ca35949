"""The sections of the configuration with a thought of few lines each: discovery, labels, limits of engines, records, retries, tracing."""

from typing import Literal, Self

from pydantic import Field, model_validator

from millgate.config.lanes import HOUR_S
from millgate.config.units import TpotObjective
from millgate.config.values import Count, Duration, FilePath, Name, Number, Section, Url, VariableName


class DiscoveryConfig(Section):
    """Where engines are found beside those in `engines`; both kinds come and go without a restart or a signal."""

    file: FilePath | None = Field(
        default=None,
        description="File with a list of more engines, YAML or JSON, each item as in `engines`. The gate looks at the file every "
        "second and takes what it says once it has not changed for a second; a file that cannot be used changes nothing. "
        "Default: there is none.",
    )
    every: Duration = Field(
        default=5.0,
        ge=0.1,
        le=HOUR_S,
        description="Time between two look-ups of the name of an engine with `discover: dns`.",
    )


class LabelsConfig(Section):
    """Where an engine stands; equal names, equal places. What is left out counts as the same place, and never as the same host."""

    host: Name | None = Field(
        default=None, description="The machine: what runs on one has the fastest links."
    )
    rack: Name | None = Field(
        default=None, description="Its rack, or what else has fast links. One name in two zones is two racks."
    )
    zone: Name | None = Field(
        default=None, description="Its zone, such as the value of `topology.kubernetes.io/zone`."
    )
    required: Literal["host", "rack", "zone"] | None = Field(
        default=None,
        description="The two engines of a request must have the same one of these labels; where none has room there, the engine that answers reads "
        "the prompt itself. The label must be given. Default: near engines are preferred, and far ones may be used.",
    )


class LimitConfig(Section):
    """How many streams an engine may run at once, below `max_inflight`, which always holds."""

    kind: Literal["fixed", "slo_gradient", "aimd"] | None = Field(
        default=None,
        description="`fixed` is `max_inflight`, less while nearly all clients leave whole answers. `slo_gradient` steers the TPOT of answers to just below "
        "`tpot_slo`, at the quantile that it names, p95 where it names none. `aimd` adds one while all is well, and "
        "takes a tenth at any sign of overload. It adds its root where no `tpot_slo` is asked for and the engine says that "
        "nothing waits. Default: `slo_gradient` where a lane has a `tpot_slo`, else `fixed` where "
        "`max_inflight` is given and `aimd` where it is not.",
    )
    start: Count | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="The number of streams that it begins with. Default: where the engine's profile or `prior` says that `tpot_slo` is met; "
        "`max_inflight` without a `tpot_slo`.",
    )
    minimum: Count = Field(default=4, ge=1, le=100_000, description="The fewest streams that it falls to.")
    tpot_slo: TpotObjective | None = Field(
        default=None,
        description="Time per output token to keep, at its quantile where one is named. Default: the shortest `tpot_slo` of the "
        "lanes, of equal ones that with the highest quantile.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.start is not None and self.start < self.minimum:
            raise ValueError(f"`start` ({self.start}) is below `minimum` ({self.minimum})")
        if self.kind == "fixed" and self._moves():
            raise ValueError("`kind: fixed` does not move: give it nothing else, the limit is `max_inflight`")
        return self

    def _moves(self) -> bool:
        given = self.model_fields_set - {"kind"}
        return any(getattr(self, name) is not None for name in given)


class RecordsConfig(Section):
    """What is written down of each attempt: never a prompt, an answer or a key."""

    log_attempts: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="File that gets one line of JSON for every attempt that is over, `-` for standard output; SIGHUP "
        "opens it anew. Default: none is written.",
    )
    kept_attempts: Count = Field(
        default=10_000,
        ge=0,
        le=1_000_000,
        description="Attempts whose decisions are kept in memory for `millgate why`, about 250 bytes each; 0 keeps none: "
        "the live page alone then has the last few thousand.",
    )


class RetriesConfig(Section):
    """Clients that come back: how many are remembered, and the tickets by which they prove their age."""

    appointments: Count = Field(
        default=100_000,
        ge=1,
        le=1_000_000,
        description="Most refused clients that are remembered at once, about 160 bytes each. Beyond it the tenant "
        "with the longest line loses its newest appointment.",
    )
    budget: bool = Field(
        default=True,
        description="Refuse retries that keep no appointment beyond a fifth of what is admitted, so that a crowd that "
        "hammers does not keep an overload alive.",
    )
    ticket_key_env: VariableName | None = Field(
        default=None,
        description="Name of the environment variable that holds the key by which tickets are signed, 32 to 64 bytes "
        "in hexadecimal digits. Replicas that share it take each other's tickets, and know the same prefixes by the same "
        "marks. Default: a new key at every start.",
    )


class TracingConfig(Section):
    """Spans of each attempt for a collector that speaks OpenTelemetry's protocol over HTTP (OTLP, JSON)."""

    endpoint: Url = Field(
        description="Where spans go by HTTP POST, such as `http://127.0.0.1:4318/v1/traces`; credentials in it are refused."
    )
    share: Number = Field(
        default=1.0,
        ge=0.0,
        le=1.0,
        description="Share of the requests without a trace of their own whose spans are sent. A request that comes with a "
        "`traceparent` is sampled as that says.",
    )
    service: str = Field(
        default="millgate", min_length=1, max_length=128, description="The `service.name` of the spans."
    )
    headers_env: VariableName = Field(
        default="OTEL_EXPORTER_OTLP_HEADERS",
        description="Name of the environment variable that holds headers for the collector, as `name=value,name=value` "
        "with percent-encoded values. Credentials never stand in a file.",
    )

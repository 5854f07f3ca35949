"""The admin door, the line door, the external processor, and what other sites' pages may ask, in the configuration."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from millgate.config.callers import ListenTlsConfig
from millgate.config.lanes import DAY_S
from millgate.config.values import (
    Count,
    Duration,
    Host,
    Name,
    Origin,
    Port,
    Section,
    VariableName,
    is_loopback,
)


class AdminConfig(Section):
    """The admin door: health, metrics, state, explain. Never expose it to clients."""

    host: Host = Field(
        default="127.0.0.1",
        description="Address to listen on. Another address than a loopback one needs a token in the environment.",
    )
    port: Port = Field(default=8081, description="TCP port; 0 takes any free one.")
    token_env: VariableName = Field(
        default="MILLGATE_ADMIN_TOKEN",
        description="Name of the environment variable that holds the bearer token. Where it is set, every path "
        "but `/healthz` and `/readyz` asks for it. The token itself never stands in a file.",
    )
    hosts: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,253}$")], ...] = Field(
        default=(),
        max_length=32,
        description="More names, without a port, that the `Host` header may carry, beside the listening address and localhost (a defence against DNS rebinding).",
    )


class CorsConfig(Section):
    """Pages of other sites that may ask from a browser (CORS)."""

    origins: tuple[Origin, ...] = Field(
        min_length=1,
        max_length=64,
        description="Origins of the pages, as in `https://app.example`; `*` allows every page. A user of such a page sees the "
        "key that it asks with.",
    )
    max_age: Duration = Field(
        default=600.0, le=DAY_S, description="How long a browser may remember the permission."
    )


class LineConfig(Section):
    """The line door: newline-delimited JSON over TCP, for clients of the Heptamini protocol. Off without this section."""

    host: Host = Field(
        default="127.0.0.1",
        description="Address to listen on. Another address than a loopback one needs a token in the environment "
        "and `line.tls`, or `insecure: true`.",
    )
    port: Port = Field(default=7777, description="TCP port; 0 takes any free one.")
    path: str = Field(
        default="/v1/chat/completions",
        pattern=r"^/[!-~]{0,255}$",
        description="Path of the engines that payloads are posted to: one of those that take JSON and a permit.",
    )
    token_env: VariableName = Field(
        default="MILLGATE_LINE_TOKEN",
        description="Name of the environment variable that holds the token. Where it is set, the first frame of a "
        "connection must carry it as `token`.",
    )
    tls: ListenTlsConfig | None = Field(default=None, description="TLS for clients. Default: plain TCP.")
    insecure: bool = Field(default=False, description="Allow a non-loopback address without token and TLS.")
    deadline: Duration = Field(
        default=600.0,
        gt=0,
        le=86_400.0,
        description="Time in which a job is answered well, from its last chunk on; the engine gets somewhat longer.",
    )
    heptamini_metrics: bool = Field(
        default=False, description="Show the five `heptamini_*` metrics at the admin door too."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.insecure and self.tls is None and not is_loopback(self.host):
            raise ValueError(
                f"{self.host} can be reached from outside: add `line.tls`, or `insecure: true` if that is meant"
            )
        return self


_MOST_OBJECTIVES = 256


class ExtprocConfig(Section):
    """The external processor behind Envoy (`millgate extproc`): gRPC for Envoys. `millgate serve` does not read it."""

    host: Host = Field(
        default="127.0.0.1",
        description="Address to listen on. Another address than a loopback one needs `tls.client_ca`, or `insecure: true` where "
        "only Envoys reach it.",
    )
    port: Port = Field(default=9002, description="TCP port; 0 takes any free one.")
    health_port: Port | None = Field(
        default=None,
        description="TCP port for `grpc.health.v1` alone, which `port` answers too. Default: none.",
    )
    tls: ListenTlsConfig | None = Field(default=None, description="TLS for Envoys. Default: plain gRPC.")
    insecure: bool = Field(default=False, description="Allow a non-loopback address to any caller.")
    streams: Count = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Most requests that Envoys may have here at once, held and being read; more get RESOURCE_EXHAUSTED.",
    )
    lease: Duration = Field(
        default=600.0,
        gt=0,
        le=86_400.0,
        description="How long an admitted request of which Envoy's access log says nothing keeps its slot, past the time of "
        "its first event. Where the log writes entries while requests run, three that are missing end it.",
    )
    objectives: dict[Name, Name] = Field(
        default_factory=dict,
        max_length=_MOST_OBJECTIVES,
        description="The lane of each objective (`x-llm-d-inference-objective`) that an Envoy in `listen.trusted_peers` sends. "
        "Default: none is read.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        knows_callers = self.tls is not None and self.tls.client_ca is not None
        if not self.insecure and not knows_callers and not is_loopback(self.host):
            raise ValueError(
                f"{self.host} can be reached from outside, where any caller can hold slots: add `tls.client_ca`, or "
                "`insecure: true` if Envoys alone reach it"
            )
        return self

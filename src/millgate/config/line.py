"""The line door in the configuration."""

from typing import Self

from pydantic import Field, model_validator

from millgate.config.callers import ListenTlsConfig
from millgate.config.section import Section
from millgate.config.values import Duration, Host, Port, VariableName, is_loopback


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

"""The one description of the configuration file: every key, its unit, its default, its limits.

The reference page (docs/reference/config.md) and the JSON Schema are generated from these classes, and so is
every "did you mean". The classes hold plain data: seconds, bytes and counts, already converted.
"""

import re
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from millgate.config.callers import EngineTlsConfig, ListenTlsConfig, TenantConfig
from millgate.config.lanes import DAY_S, DEFAULT_LANES, HOUR_S, MAX_LANES, LaneConfig
from millgate.config.limiters import LimitConfig
from millgate.config.line import LineConfig
from millgate.config.observe import RecordsConfig
from millgate.config.quotas import MAX_QUOTAS, AccountConfig, QuotaConfig
from millgate.config.retries import RetriesConfig
from millgate.config.section import Section
from millgate.config.values import (
    Count,
    Duration,
    Name,
    Network,
    Number,
    Port,
    RequestPath,
    Size,
    Url,
    VariableName,
    YesNoAuto,
)

MAX_ENGINES = 64
MAX_TENANTS = 10_000


class ListenConfig(Section):
    """The HTTP door."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address to listen on. Another address than a loopback one needs client keys (`tenants`), "
        "client certificates (`listen.tls.client_ca`), or `insecure: true` (`--insecure`).",
    )
    port: Port = Field(default=8080, description="TCP port; 0 takes any free one.")
    insecure: bool = Field(default=False, description="Allow a non-loopback address without client keys.")
    tls: ListenTlsConfig | None = Field(
        default=None, description="TLS for clients. Default: plain HTTP, as behind a load balancer."
    )
    trusted_peers: tuple[Network, ...] = Field(
        default=(),
        max_length=256,
        description="Networks (CIDR, IPv4 and IPv6) of proxies whose `x-millgate-tenant` and `x-millgate-lane` are "
        "believed; from other peers they are dropped and counted. Only these may send what chooses an engine's cache "
        "(`kv_transfer_params`, `bootstrap_*`, `session_params`): such a proxy must refuse it from its own clients.",
    )
    pass_through: tuple[Literal["/ping", "/version", "/metrics"], ...] = Field(
        default=(),
        max_length=3,
        description="Pages of an engine about itself that clients may see, by GET and with a key where there are "
        "`tenants`: `/ping`, `/version`, `/metrics`. Of several engines one that is up answers. `/metrics` shows every "
        "client the load of all and the names of the models. Default: none; the gate's own metrics are at the admin door.",
    )
    healthz: bool = Field(
        default=False,
        description="Whether `GET /healthz` on this port says that the process lives, to every caller, also while it is "
        "too slow itself. `/health` always says whether work should come here.",
    )


class AdminConfig(Section):
    """The admin door: health, metrics, state, explain. Never expose it to clients."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address to listen on. Another address than a loopback one needs a token in the environment.",
    )
    port: Port = Field(default=8081, description="TCP port; 0 takes any free one.")
    token_env: VariableName = Field(
        default="MILLGATE_ADMIN_TOKEN",
        description="Name of the environment variable that holds the bearer token. Where it is set, every path "
        "but `/healthz` and `/readyz` asks for it. The token itself never stands in a file.",
    )
    hosts: tuple[str, ...] = Field(
        default=(),
        max_length=32,
        description="More names that the `Host` header may carry, beside the listening address and localhost "
        "(a defence against DNS rebinding).",
    )


class PriorConfig(Section):
    """What to believe of an engine's speed before it has answered anything; a handful of answers replaces it."""

    ttft_base: Duration = Field(
        default=0.05, le=HOUR_S, description="Time to the first token of an empty prompt."
    )
    ttft_per_token: Duration = Field(
        default=0.0001, le=1.0, description="More time per prompt token, e.g. `100us`."
    )
    tpot_base: Duration = Field(default=0.015, le=60.0, description="Time per output token of a lone stream.")
    tpot_per_stream: Duration = Field(
        default=0.0001, le=1.0, description="More time per output token and stream."
    )


class EngineConfig(Section):
    """One inference server and the hard cap in front of it."""

    name: Name = Field(
        default="",
        description="Its name in metrics, logs and answers of the admin door. Default: `host:port` of the URL.",
    )
    url: Url = Field(
        description="Base address, `http://host:port` or `https://host`; a path in front of `/v1` is kept. "
        "Credentials in it are refused."
    )
    api_key_env: VariableName | None = Field(
        default=None,
        description="Name of the environment variable that holds the credential for this engine. It replaces "
        "whatever the client sent. Default: none is sent for tenants with keys; else the client's passes untouched.",
    )
    tls: EngineTlsConfig | None = Field(
        default=None,
        description="How a `https` engine is verified and what it is shown. Default: as the system does.",
    )
    max_inflight: Count | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="Most streams at once. Default: KV tokens of the engine over mean tokens per request, "
        "within 4..256; 256 when the engine does not tell. Below a default the limit is found: see `limit`.",
    )
    kv_tokens: Count | None = Field(
        default=None,
        ge=1,
        description="Most reserved prompt and output tokens at once. Default: 0.9 of what the engine says it "
        "holds; off when it does not tell.",
    )
    prefill_tokens: Count | None = Field(
        default=None,
        ge=1,
        description="Most prompt tokens not yet prefilled at once, and no more than are read in a fifth of the "
        "lane's deadline unless its order is arrival; a longer prompt runs alone. Default: 16,384 (eight chunks of "
        "engines that read 2,048 at a time); off for a provider's account.",
    )
    models: tuple[str, ...] = Field(
        default=(),
        max_length=1000,
        description="Model names that it serves. Default: whatever it is asked for.",
    )
    health: str | None = Field(
        default="/health",
        pattern=r"^/[!-~]*$",
        max_length=1024,
        description="Path of its health page, asked once a second; below 500 is well. `null` asks none: then only "
        "failed requests take it out.",
    )
    limit: LimitConfig = Field(
        default_factory=LimitConfig, description="How the number of streams moves below `max_inflight`."
    )
    account: AccountConfig | None = Field(
        default=None,
        description="What a provider grants the account behind this address. Default: no limits are known.",
    )
    ignores_hangups: YesNoAuto = Field(
        default="auto", description="Whether it goes on generating for clients that left; `auto` finds out."
    )
    profile: str | None = Field(
        default=None,
        description="Name of a built-in speed profile to start from (`millgate engine --help` lists them).",
    )
    time_scale: Number = Field(
        default=1.0,
        ge=0.1,
        le=10.0,
        description="How much faster than its profile it runs; only an embedded engine in a demonstration does.",
    )
    prior: PriorConfig | None = Field(
        default=None,
        description="Its speed in numbers, instead of a profile. Default: a mid-size model on one GPU.",
    )

    @model_validator(mode="before")
    @classmethod
    def _name_it(cls, data: Any) -> Any:
        """Give a nameless engine its address as name, so that every engine has one."""
        if isinstance(data, dict) and isinstance(data.get("url"), str) and data.get("name") is None:
            address = data["url"].partition("://")[2].partition("/")[0].rpartition("@")[2]
            return {**data, "name": re.sub(r"[^A-Za-z0-9._:-]", "", address)[:64].lstrip(".:-") or "engine"}
        return data

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.profile is not None and self.prior is not None:
            raise ValueError("`profile` and `prior` both say how fast it is: give one")
        if self.tls is not None and not self.url.startswith("https:"):
            raise ValueError("`tls` is for an address that begins with https")
        return self


class LimitsConfig(Section):
    """Bounds and deadlines of the HTTP door: what one client, or all of them, may take."""

    body: Size = Field(default=32 * 1024 * 1024, ge=1024, le=1024**3, description="Largest request body.")
    headers: Size = Field(
        default=64 * 1024, ge=1024, le=1024**2, description="Largest request head, all headers."
    )
    header_field: Size = Field(
        default=16 * 1024, ge=256, le=1024**2, description="Longest single request header."
    )
    header_count: Count = Field(default=100, ge=8, le=1000, description="Most request headers.")
    url: Size = Field(default=8 * 1024, ge=256, le=64 * 1024, description="Longest request target.")
    connections: Count | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Most client connections of the HTTP door at once. All doors together never have more than half of the soft limit of open files less 100: the other half is for engines.",
    )
    byte_budget: Size = Field(
        default=256_000_000,
        ge=1024**2,
        description="Most bytes of bodies being received and kept, over all clients; one tenant has at most half of "
        "them, one peer three quarters.",
    )
    header_deadline: Duration = Field(
        default=10.0, gt=0, le=HOUR_S, description="Time to send a request head."
    )
    body_deadline: Duration = Field(default=30.0, gt=0, le=HOUR_S, description="Time to send a request body.")
    body_rate: Size = Field(
        default=16 * 1024,
        ge=1,
        description="Bytes of a body that buy its sender one more second beyond `body_deadline`.",
    )
    idle: Duration = Field(
        default=75.0,
        gt=0,
        le=DAY_S,
        description="How long an idle client connection is kept (load balancers keep 60s).",
    )
    write_stall: Duration = Field(
        default=30.0, gt=0, le=HOUR_S, description="How long a client may read nothing of a started answer."
    )
    upstream_connect: Duration = Field(
        default=5.0, gt=0, le=60.0, description="Time for an engine to accept a connection."
    )
    first_event: Duration | None = Field(
        default=None,
        gt=0,
        le=DAY_S,
        description="Longest time from admission to an engine's first event, or whole answer where it does not stream. "
        "Default: by the request's deadline and the engine's learned speed alone.",
    )
    longest_answer: Count = Field(
        default=32_768,
        ge=1,
        le=10_000_000,
        description="Tokens of the longest whole answer (not streamed) to a request without `max_tokens`, within the "
        "engine's KV tokens. An answer is given up after four times what so many, or the client's own `max_tokens`, take "
        "at the engine's pace (twenty times while ten answers have not taught it) plus its deadline, a minute at least.",
    )
    upstream_idle: Duration = Field(
        default=60.0,
        gt=0,
        le=HOUR_S,
        description="How long a started answer of an engine may stay silent, or one that has not begun once nothing answers at the engine's health page.",
    )
    loop_lag: Duration = Field(
        default=0.1,
        ge=0.01,
        le=10.0,
        description="Refuse new requests once this process has been so late to serve what is ready for a second; again below half of it.",
    )
    keep_alive: dict[RequestPath, Duration] = Field(
        default_factory=dict,
        max_length=16,
        description="Paths, such as `/v1/chat/completions`, whose streaming clients get a sign of life so often while "
        "they wait, and the time between two. The first one settles status 200: a later refusal comes as an error "
        "event. Default: none.",
    )
    light_requests: Count = Field(
        default=16,
        ge=1,
        le=10_000,
        description="Most requests at once that need no permit, such as the list of models.",
    )
    drain_grace: Duration = Field(
        default=30.0, le=HOUR_S, description="How long running streams may go on after SIGTERM."
    )


class Config(Section):
    """A whole configuration, valid by itself; `millgate serve --upstream URL` builds one without a file."""

    listen: ListenConfig = Field(default_factory=ListenConfig, description="The HTTP door.")
    admin: AdminConfig = Field(default_factory=AdminConfig, description="The admin door.")
    engines: tuple[EngineConfig, ...] = Field(
        min_length=1, max_length=MAX_ENGINES, description="The inference servers behind the gate."
    )
    lanes: tuple[LaneConfig, ...] = Field(
        default_factory=lambda: tuple([LaneConfig.model_validate(lane) for lane in DEFAULT_LANES]),
        min_length=1,
        max_length=MAX_LANES,
        description="Classes of traffic; the first takes every request that names none and that no other `takes`. Default: "
        "`interactive`, `long_context` and `throughput`; lanes that are named here take their place.",
    )
    tenants: tuple[TenantConfig, ...] = Field(
        default=(),
        max_length=MAX_TENANTS,
        description="Admitted callers, by key. Default: all callers are one tenant and credentials pass untouched.",
    )
    mode: Literal["protect", "observe"] = Field(
        default="protect",
        description="`observe` refuses and holds nothing: it lets everything run and records what it would have done.",
    )
    hard_cap: bool = Field(
        default=False,
        description="In mode `observe`: while every engine is at its limit, hold and refuse all the same. Has no "
        "meaning in mode `protect`.",
    )
    tenant_from: Literal["key"] | None = Field(
        default=None,
        description="`key` makes one tenant of each credential that passes through, known by a hash; whether the "
        "credential is good is for the engine to say. Not together with `tenants`.",
    )
    quotas: tuple[QuotaConfig, ...] = Field(
        default=(),
        max_length=MAX_QUOTAS,
        description="What tenants, models and lanes may ask for in a minute or a day. Default: no quotas.",
    )
    retries: RetriesConfig = Field(
        default_factory=RetriesConfig, description="Clients that come back, and how they are known."
    )
    records: RecordsConfig = Field(
        default_factory=RecordsConfig, description="What is written down of each attempt."
    )
    line: LineConfig | None = Field(default=None, description="The line door. Default: there is none.")
    limits: LimitsConfig = Field(
        default_factory=LimitsConfig, description="Bounds and deadlines of the HTTP door."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        _refuse_twins("engines", [engine.name for engine in self.engines])
        _refuse_twins("lanes", [lane.name for lane in self.lanes])
        _refuse_twins("tenants", [tenant.name for tenant in self.tenants])
        _refuse_twins("quotas", [quota.name for quota in self.quotas])
        return self


def _refuse_twins(what: str, names: list[str]) -> None:
    twins = sorted({name for name in names if names.count(name) > 1})
    if twins:
        raise ValueError(f"{what} have the same name: {', '.join(twins)}")

"""The one description of the configuration file: every key, its unit, its default, its limits.

The reference page (docs/reference/config.md) and the JSON Schema are generated from these classes, and so is
every "did you mean". The classes hold plain data: seconds, bytes and counts, already converted.
"""

from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from millgate.config.callers import EngineTlsConfig, ListenTlsConfig, TenantConfig
from millgate.config.cluster import ClusterConfig
from millgate.config.doors import AdminConfig, CorsConfig, ExtprocConfig, LineConfig
from millgate.config.lanes import DAY_S, DEFAULT_LANES, HOUR_S, MAX_LANES, LaneConfig
from millgate.config.quotas import MAX_QUOTAS, AccountConfig, QuotaConfig
from millgate.config.sections import (
    DiscoveryConfig,
    LabelsConfig,
    LimitConfig,
    RecordsConfig,
    RetriesConfig,
    TracingConfig,
)
from millgate.config.values import (
    BaseUrl,
    Count,
    Duration,
    FilePath,
    HeaderName,
    Host,
    IgnoredHangups,
    Name,
    Network,
    Number,
    Port,
    ProxyUrl,
    RequestPath,
    Section,
    Size,
    VariableName,
    is_address,
    name_of_url,
)

MAX_ENGINES = 64
MAX_TENANTS = 10_000
MAX_WORKERS = 64
_DNS = "dns://"


class ListenConfig(Section):
    """The HTTP door."""

    host: Host = Field(
        default="127.0.0.1",
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
        "(docs/security.md names the fields): such a proxy must refuse it from its own clients.",
    )
    session_headers: tuple[HeaderName, ...] = Field(
        default=("x-session-id", "x-dynamo-session-id", "x-claude-code-session-id", "session-id"),
        max_length=8,
        description="Headers whose value names the session that a request is a turn of; the first that is there counts, and each tenant's "
        "and each model's sessions are their own. Claude Code sends `x-claude-code-session-id`, Codex `session-id`; their subagents are sessions of their own "
        "(`x-claude-code-agent-id`, `thread-id`). All pass on to the engine. Requests without one are turns of the session whose prompt theirs goes on from.",
    )
    pass_through: tuple[Literal["/ping", "/version", "/metrics"], ...] = Field(
        default=(),
        max_length=3,
        description="Pages of an engine about itself that clients may see, by GET and with a key where there are "
        "`tenants`: `/ping`, `/version`, `/metrics`. Of several engines one that is up answers. `/metrics` shows every "
        "client the load of all and the names of the models. Default: none; the gate's own metrics are at the admin door.",
    )
    cors: CorsConfig | None = Field(
        default=None, description="Pages of other sites that may ask. Default: none may."
    )
    healthz: bool = Field(
        default=False,
        description="Whether `GET /healthz` on this port says that the process lives, to every caller, also while it is too slow itself. `/health` always says whether work should come here.",
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


_BOOTSTRAP_PORT: Final = 8998
"""SGLang's own default."""


class EngineConfig(Section):
    """One inference server and the hard cap in front of it."""

    name: Name = Field(
        default="",
        description="Its name in metrics, logs and answers of the admin door. Default: `host:port` of the URL.",
    )
    url: BaseUrl = Field(
        description="Base address, `http://host:port` or `https://host`; a path in front of `/v1` is kept. "
        "Credentials in it are refused. Of several addresses of the host the first that answers is used. `dns://host:port` is `http://host:port` with `discover: dns`."
    )
    discover: Literal["dns"] | None = Field(
        default=None,
        description="`dns` makes one engine, with these settings, of each address (A and AAAA) of the host in `url`, as a "
        "headless service of Kubernetes has them. It looks the name up again every `discovery.every`. Such an engine is "
        "named by its address, after `name` where that is given. Default: the host is one engine.",
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
    proxy: ProxyUrl | None = Field(
        default=None,
        description="HTTP proxy that every connection to it goes through, by CONNECT: `http://host:port`. The proxy looks the host of `url` up. Default: "
        "none. `HTTPS_PROXY` and its like count only where `proxy_env` names them.",
    )
    proxy_env: VariableName | None = Field(
        default=None,
        description="Name of the environment variable, such as `HTTPS_PROXY`, that holds the address of its proxy, in place of `proxy`; it may carry "
        "credentials: `http://user:password@host:port`.",
    )
    drain: bool = Field(
        default=False,
        description="Give it nothing new, as before a restart of it. What runs there ends undisturbed, and what the gate has learned of it stays.",
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
        description="Most reserved prompt and output tokens at once. Default: 0.9 of what the engine says it holds; off when it does not tell.",
    )
    prefill_tokens: Count | None = Field(
        default=None,
        ge=1,
        description="Most prompt tokens not yet prefilled at once. Unless the lane's order is arrival, there are no more "
        "than the engine reads in a fifth of the lane's deadline, nor of the shortest `ttft_slo` before more of a longer one. A longer prompt runs alone. Default: 16,384 (eight chunks of "
        "engines that read 2,048 at a time); 131,072 with the role `prefill`; off for a provider's account.",
    )
    models: tuple[str, ...] = Field(
        default=(),
        max_length=1000,
        description="Model names that it serves; `/v1/models` lists them beside those that it lists itself. Default: whatever it is asked for.",
    )
    adapters: tuple[str, ...] = Field(
        default=(),
        max_length=1000,
        description="Names of adapters (LoRA) that it serves beside its models, and beside those that it lists at `/v1/models` itself. Requests "
        "for one go where it is loaded, unless waiting there takes longer than loading it elsewhere.",
    )
    adapter_slots: Count | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Adapters that it runs requests for at once: vLLM's `--max-loras`. Requests for others wait at the gate. Default: what "
        "the engine says itself (`vllm:lora_requests_info`); where it says nothing, none is held for want of a slot.",
    )
    adapter_load: Duration = Field(
        default=0.5, ge=0.0, le=HOUR_S, description="How long it takes to load an adapter."
    )
    overflow: bool = Field(
        default=False,
        description="Whether it gets only requests that no other engine has room for in time: a provider's account behind GPUs that are paid for anyway.",
    )
    role: Literal["unified", "prefill", "decode"] = Field(
        default="unified",
        description="`prefill` reads prompts for engines whose role is `decode`, which get them by `kv_transfer`, and "
        "answers nothing itself. `decode` also answers whole requests, where that costs less; SGLang's does not. Both roles are needed, with the same `models`.",
    )
    kv_transfer: Literal["nixl", "sglang"] = Field(
        default="nixl",
        description="How prompts go from engines with the role `prefill` to those with the role `decode`: `nixl` by vLLM's `kv_transfer_params` (pull), "
        "one after the other; `sglang` by `bootstrap_room`, both at once. Equal on both.",
    )
    bootstrap_port: Count | None = Field(
        default=None,
        ge=1,
        le=65_535,
        description="Of an engine with the role `prefill` and `kv_transfer: sglang`: its `--disaggregation-bootstrap-port`. Default 8998. Engines that "
        "decode must reach it at the host of `url`.",
    )
    kv_lease: Duration = Field(
        default=30.0,
        ge=1.0,
        le=HOUR_S,
        description="How long an engine with the role `prefill` keeps a prompt for another: vLLM's `kv_lease_duration`. A stream that has not begun "
        "when five sixths of it are over is begun anew, with its prompt read where it is answered.",
    )
    labels: LabelsConfig = Field(
        default_factory=LabelsConfig,
        description="Where it stands. Prompts go from engines with the role `prefill` to near ones rather than to far ones, by what each way costs; to far "
        "ones where near ones are down or full.",
    )
    health: str | None = Field(
        default="/health",
        pattern=r"^/[!-~]*$",
        max_length=1024,
        description="Path of its health page, asked once a second; below 500 is well. `null` asks none: then only failed requests take it out.",
    )
    metrics: str | None = Field(
        default="/metrics",
        pattern=r"^(:[1-9]\d{0,4})?/[!-~]*$",
        max_length=1024,
        description="Path of its metrics page, which is read once a second; with a port before it where it has one of its own: "
        "`:8002/metrics`. `null` reads none.",
    )
    limit: LimitConfig = Field(
        default_factory=LimitConfig, description="How the number of streams moves below `max_inflight`."
    )
    account: AccountConfig | None = Field(
        default=None,
        description="What a provider grants the account behind this address. Default: no limits are known.",
    )
    ignores_hangups: IgnoredHangups = Field(
        default="auto",
        description="Whether it goes on generating for clients that left; `whole`: all but streams. `auto` finds out, and where "
        "replicas or workers share the engine, whose gauges then count the work of all, means `no`.",
    )
    abort_lag: Duration = Field(
        default=0.3,
        ge=0.05,
        le=HOUR_S,
        description="How long it goes on for a client that left, until that was measured, which `auto` alone does: vLLM 0.3 s, SGLang 2 s.",
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

    @property
    def meeting_port(self) -> int | None:
        """Where SGLang's engines meet for prompts that it reads; None where it reads none for such."""
        is_met = self.role == "prefill" and self.kv_transfer == "sglang"
        return (self.bootstrap_port or _BOOTSTRAP_PORT) if is_met else None

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: Any) -> Any:
        """Read the short form of `discover: dns`, and give a nameless engine its address as name."""
        if not isinstance(data, dict) or not isinstance(data.get("url"), str):
            return data
        if data["url"].startswith(_DNS):
            data = {**data, "url": "http://" + data["url"].removeprefix(_DNS), "discover": "dns"}
        return {**data, "name": name_of_url(data["url"])} if data.get("name") is None else data

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.profile is not None and self.prior is not None:
            raise ValueError("`profile` and `prior` both say how fast it is: give one")
        if self.tls is not None and not self.url.startswith("https:"):
            raise ValueError("`tls` is for an address that begins with https")
        if self.discover is not None and is_address(urlsplit(self.url).hostname or ""):
            raise ValueError("`discover` looks a name up, and `url` holds an address")
        if self.discover is not None and self.account is not None:
            raise ValueError("`discover` finds several engines, and `account` is of one: give one of the two")
        if (self.discover, self.proxy, self.proxy_env).count(None) < 2:
            raise ValueError("`discover`, `proxy` and `proxy_env` each say how its host is found: give one")
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
        description="Most client connections of the HTTP door at once. All doors together never have more than half of the open files that it may have less 100: the other half is for engines.",
    )
    byte_budget: Size = Field(
        default=256_000_000,
        ge=1024**2,
        description="Most bytes of bodies being received and kept, over all clients; one tenant, and one "
        "address at the line door, has at most half of them, one peer and the line door three quarters.",
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
        description="Longest time from admission to an engine's first event or first sound, or whole answer where it does not stream. "
        "Default: by the request's deadline and the engine's learned speed alone.",
    )
    longest_answer: Count = Field(
        default=32_768,
        ge=1,
        le=10_000_000,
        description="Tokens of the longest whole answer (not streamed) to a request without `max_tokens`, within the "
        "engine's KV tokens. An answer is given up after its deadline plus four times what so many, or the client's own "
        "`max_tokens`, take at the engine's pace, a minute at least. Until eight answers have taught the pace it is twenty times.",
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
    keep_alive: dict[RequestPath, Annotated[Duration, Field(ge=0.1)]] = Field(
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
        description="Most requests at once that need no permit, such as the list of models; of several tenants each has at most "
        "as many as stay free. A stored answer that streams counts no longer once it has begun, and a tenant has at most "
        "as many such streams.",
    )
    drain_grace: Duration = Field(
        default=30.0, le=HOUR_S, description="How long running streams may go on after SIGTERM."
    )


class Config(Section):
    """A whole configuration, valid by itself; `millgate serve --upstream URL` builds one without a file."""

    listen: ListenConfig = Field(default_factory=ListenConfig, description="The HTTP door.")
    admin: AdminConfig = Field(default_factory=AdminConfig, description="The admin door.")
    engines: tuple[EngineConfig, ...] = Field(
        min_length=1,
        max_length=MAX_ENGINES,
        description="The inference servers behind the gate; those of `discovery.file` join them.",
    )
    discovery: DiscoveryConfig = Field(
        default_factory=DiscoveryConfig, description="Engines that come and go while the gate runs."
    )
    lanes: tuple[LaneConfig, ...] = Field(
        default_factory=lambda: tuple([LaneConfig.model_validate(lane) for lane in DEFAULT_LANES]),
        min_length=1,
        max_length=MAX_LANES,
        description="Classes of traffic; the first takes every request that names none and that no other `takes`. Default: "
        "`interactive`, `long_context`, `throughput` and `agents`; lanes that are named here take their place.",
    )
    tenants: tuple[TenantConfig, ...] = Field(
        default=(),
        max_length=MAX_TENANTS,
        description="Admitted callers, by key. Default: all callers are one tenant and credentials pass untouched.",
    )
    workers: Count = Field(
        default=1,
        ge=1,
        le=MAX_WORKERS,
        description="Processes that serve the doors, one for each core that is to be used; they share every limit, and "
        "bounds of one process (`limits`) are those of each. The value of the start counts until the gate is restarted.",
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
    quotas_file: FilePath | None = Field(
        default=None, description="File that keeps what is used of `quotas` over a restart. Default: none."
    )
    retries: RetriesConfig = Field(
        default_factory=RetriesConfig, description="Clients that come back, and how they are known."
    )
    records: RecordsConfig = Field(
        default_factory=RecordsConfig, description="What is written down of each attempt."
    )
    tracing: TracingConfig | None = Field(
        default=None,
        description="Traces for a collector. Default: none are made, and a client's pass untouched.",
    )
    line: LineConfig | None = Field(default=None, description="The line door. Default: there is none.")
    cluster: ClusterConfig | None = Field(
        default=None, description="Replicas that share limits. Default: this process has them all."
    )
    extproc: ExtprocConfig | None = Field(
        default=None,
        description="The external processor of `millgate extproc`. Default: as its settings say.",
    )
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

"""What the gateway is told, as plain values: it reads no configuration file."""

import ssl as tls
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from millgate.core.settings import KV_LEASE_S
from millgate.gateway.tls import Certificate, TlsFiles, engine_context
from millgate.http1.client import Proxy, UpstreamSettings
from millgate.http1.server import ServerLimits
from millgate.observe.observers import ObserverSettings
from millgate.runtime.callers import CallerSettings
from millgate.servers.extproc.settings import ExtprocSettings
from millgate.servers.http import DoorSettings
from millgate.servers.line import LineSettings

DEFAULT_BYTE_BUDGET = 256_000_000


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Where one engine listens; `name` is the core's name for it, `base_path` stands before `/v1/...`.

    `server_name` is what its certificate must be for, by default `host`; `api_key` replaces clients' credentials.
    `health` is the path of its health page, None where requests alone shall tell how it is, `metrics` that of its
    gauges, with `:port` before it where they have one of their own, None where they are not read. Of a `metered` one, a
    provider's account, the limits are read off its answers, and nothing but requests is sent there. One that comes
    while the gate runs and does not answer is not `is_up`: it gets requests once its health page answers. An empty
    `host` is a name that nothing was found for: it is down until the settings change. A prompt that it reads for
    another engine it keeps for `kv_lease_s`, or both get it at `bootstrap_port` at once (SGLang). `models` are those
    that it is named for, none where it takes any. With a `proxy` every connection to it goes through that. One that
    `drains` gets nothing new.
    """

    name: str
    host: str
    port: int
    base_path: str = ""
    ssl: tls.SSLContext | None = None
    server_name: str | None = None
    api_key: str | None = field(default=None, repr=False)
    health: str | None = "/health"
    metrics: str | None = "/metrics"
    metered: bool = False
    is_up: bool = True
    kv_lease_s: float = KV_LEASE_S
    bootstrap_port: int | None = None
    models: tuple[str, ...] = ()
    proxy: Proxy | None = None
    drains: bool = False

    @property
    def place(self) -> tuple[object, ...]:
        """Return what makes it the same server, and the same way there: its credentials and certificates may change."""
        place = self.host, self.port, self.base_path, self.ssl is not None, self.proxy
        return *place, self.health, self.metrics, self.metered

    @property
    def gauges(self) -> tuple[int, bytes]:
        """Return the port and the target of its metrics page."""
        port, slash, path = (self.metrics or "").removeprefix(":").partition("/")
        return int(port or self.port), ((self.base_path if not port else "") + slash + path).encode()

    @classmethod
    def from_url(cls, name: str, url: str, *, files: TlsFiles | None = None, **more: Any) -> Self:
        """Read `http[s]://host[:port][/base][/v1]`, and take `more` fields; ValueError says what is wrong, TlsError which file."""
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"{url!r} is not an address: write http://host:port")
        secure = parts.scheme == "https"
        # People write the base address as the SDKs want it, with the /v1 that every path here begins with.
        base_path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        context = engine_context(files or TlsFiles()) if secure else None
        port = parts.port or (443 if secure else 80)
        return cls(name, parts.hostname, port, base_path, context, **more)


@dataclass(frozen=True, slots=True)
class AdminAddress:
    """Where the admin door listens, and what it asks for."""

    host: str = "127.0.0.1"
    port: int = 8081
    token: str | None = None
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LineAddress:
    """Where the line door listens; with `metrics` the admin door shows its `heptamini_*` numbers beside our own."""

    host: str = "127.0.0.1"
    port: int = 7777
    door: LineSettings = field(default_factory=LineSettings)
    ssl: tls.SSLContext | None = field(default=None, compare=False)
    metrics: bool = False


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Where this replica leases its shares, and what it does without the store; `ca` is a file of certificates.

    `url` may carry credentials, and neither it nor the password is ever shown. `replica` names this run of this process.
    """

    url: str = field(repr=False)
    name: str
    replica: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None
    lease_s: float = 2.0
    renew_every_s: float = 0.25
    timeout_s: float = 0.2
    when_gone: Literal["share", "closed", "open"] = "share"


@dataclass(frozen=True, slots=True)
class ExtprocAddress:
    """Where the external processor listens for Envoys, with `ssl` over TLS.

    `health_port` is for gRPC's health service alone, in the clear; None for none.
    """

    host: str = "127.0.0.1"
    port: int = 9002
    health_port: int | None = None
    door: ExtprocSettings = field(default_factory=ExtprocSettings)
    ssl: tls.SSLContext | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Addresses, bounds and deadlines of one gateway process; port 0 takes any free one.

    `ssl` is the context for clients, None for plain HTTP; `callers` says which callers are admitted. `drain_grace_s` is
    how long running streams may go on after SIGTERM. `admin` None opens no admin door, `line` None no line door, and without a
    `cluster` this process has all of every limit.
    With `extproc` requests come through Envoys, and no HTTP port is opened. It is one of so many `workers`. `certificates` are
    those of all contexts.
    """

    engines: tuple[EngineAddress, ...]
    host: str = "127.0.0.1"
    port: int = 8080
    ssl: tls.SSLContext | None = None
    callers: CallerSettings = field(default_factory=CallerSettings)
    admin: AdminAddress | None = None
    line: LineAddress | None = None
    cluster: ClusterSettings | None = None
    extproc: ExtprocAddress | None = None
    door: DoorSettings = field(default_factory=DoorSettings)
    server: ServerLimits = field(default_factory=ServerLimits)
    upstream: UpstreamSettings = field(default_factory=UpstreamSettings)
    byte_budget: int = DEFAULT_BYTE_BUDGET
    drain_grace_s: float = 30.0
    observers: ObserverSettings = field(default_factory=ObserverSettings)
    quotas_file: str | None = None
    workers: int = 1
    certificates: tuple[Certificate, ...] = ()

    def keeping(self, before: Self) -> Self:
        """Return these with what only a restart changes as it was before."""
        return replace(
            self,
            host=before.host,
            port=before.port,
            admin=before.admin,
            line=self.line if _is_same_door(before.line, self.line) else before.line,
            cluster=before.cluster,
            extproc=before.extproc,
            door=replace(self.door, ticket_key=before.door.ticket_key),
            observers=before.observers,
            quotas_file=before.quotas_file,
            workers=before.workers,
        )

    def needing_restart(self, before: Self) -> tuple[str, ...]:
        """Name what differs from before, and what `keeping` leaves as it was."""
        records = replace(before.observers, tracing=self.observers.tracing)
        differing = {
            "listen.host": before.host != self.host,
            "listen.port": before.port != self.port,
            "admin": before.admin != self.admin,
            "extproc": not _is_same_door(before.extproc, self.extproc),
            "workers": before.workers != self.workers,
            "retries.ticket_key_env": before.door.ticket_key != self.door.ticket_key,
            "records": records != self.observers,
            "quotas_file": before.quotas_file != self.quotas_file,
            "tracing": before.observers.tracing != self.observers.tracing,
            "cluster": before.cluster != self.cluster,
            "line": not _is_same_door(before.line, self.line),
        }
        return tuple(name for name, differs in differing.items() if differs)


def _is_same_door(
    before: LineAddress | ExtprocAddress | None, now: LineAddress | ExtprocAddress | None
) -> bool:
    """Return whether only the certificates may be others."""
    return before == now and _is_secured(before) is _is_secured(now)


def _is_secured(door: LineAddress | ExtprocAddress | None) -> bool:
    return door is not None and door.ssl is not None

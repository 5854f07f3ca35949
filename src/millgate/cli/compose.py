"""From a loaded configuration to a gateway that serves: find the engines, ask them, choose, build, run."""

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from millgate.cli.certificates import certificates
from millgate.cli.exits import ExitCode
from millgate.cli.opening import ensure_quotas, opening_error
from millgate.cli.sized_configuration import SizedConfiguration
from millgate.config.callers import ListenTlsConfig
from millgate.config.doors import ExtprocConfig
from millgate.config.load import Loaded
from millgate.config.problems import ConfigError, Problem, SettingPath
from millgate.config.schema import Config, EngineConfig, LimitsConfig, ListenConfig
from millgate.dialects import BY_PATH, READERS
from millgate.gateway import (
    AdminAddress,
    ClusterSettings,
    EngineAddress,
    ExtprocAddress,
    GatewaySettings,
    LineAddress,
    TlsError,
    TlsFiles,
    engine_context,
    listener_context,
    serve,
)
from millgate.gateway.serve import ProcessEnding
from millgate.http1.client import Proxy, UpstreamSettings
from millgate.http1.server import ServerLimits
from millgate.observe.observers import ObserverSettings
from millgate.observe.tracing import TracingSettings
from millgate.runtime.callers import CallerSettings, TenantRule
from millgate.runtime.clock import MonotonicClock
from millgate.servers.extproc.settings import ExtprocSettings
from millgate.servers.http import CoalescingSettings, CrossOrigin, DoorSettings
from millgate.servers.line import LineSettings
from millgate.wiring.governor import build_governor
from millgate.wiring.settings import LINE_LANE, Built

if TYPE_CHECKING:
    from ssl import SSLContext

    from millgate.gateway import Gateway
    from millgate.gateway.workers.worker import WorkerSide

# This run of this process: one that starts again is another replica, whatever number it gets.
_RUN = f"{os.getpid()}:{os.urandom(4).hex()}"
_SUPERVISED = ClusterSettings("", "workers", _RUN, renew_every_s=0.1)
"""Workers lease from their supervisor, which answers in a millisecond: so often that a burst at one of them finds what the
others do not use before its client would notice."""


async def serve_configuration(
    loaded: Loaded,
    on_ready: Callable[["Gateway", Built], None],
    reload: Callable[[], Loaded] | None = None,
    *,
    behind_envoy: bool = False,
    worker: "WorkerSide | None" = None,
    begun: GatewaySettings | None = None,
) -> ExitCode:
    """Serve what the configuration says until a signal ends it; `on_ready` is called when every door listens.

    With `behind_envoy` requests come to the external processor, and the HTTP door is not opened. `worker` is the channel to a
    supervisor, None in a process alone; `begun` is what the gate began with, where a reload has brought another file since.

    At SIGHUP `reload` reads the configuration anew. Raises ConfigError when a file of TLS cannot be used or a chosen name
    does not exist, CommandError when an address cannot be had.
    """
    if worker is None:
        ensure_quotas(loaded.config)
    settings_of = extproc_settings if behind_envoy else gateway_settings
    sized = SizedConfiguration(loaded, settings_of if worker is None else worker_settings)
    if worker is not None:
        worker.text = lambda: sized.text
    settings, built = await sized.ask()
    if begun is not None:
        settings = settings.keeping(begun)
    governor = build_governor(built.settings, MonotonicClock.now())
    fetch = None if reload is None else partial(sized.reload, reload)
    try:
        ending = await serve(
            governor,
            settings,
            on_ready=lambda gateway: on_ready(gateway, built),
            fetch=fetch,
            sizes=sized,
            store=None if worker is None else worker.store(),
            place=None if worker is None else worker.place,
            notifier=worker,
        )
    except OSError as error:
        raise opening_error(error, loaded.config, behind_envoy=behind_envoy) from None
    return ExitCode.OK if ending is ProcessEnding.DRAINED else ExitCode.INTERRUPTED


def worker_settings(loaded: Loaded) -> GatewaySettings:
    """Return the settings of one worker: the store is its supervisor's where none is named."""
    settings = gateway_settings(loaded)
    return replace(settings, cluster=settings.cluster or _SUPERVISED)


def gateway_settings(loaded: Loaded, *, hands_over: bool = True) -> GatewaySettings:
    """Return the gateway's addresses, bounds and deadlines; ConfigError for TLS files that cannot be used. Only one that `hands_over` lets an engine read for another."""
    config, token = loaded.config, loaded.admin_token
    limits, records, cors = config.limits, config.records, config.listen.cors
    return GatewaySettings(
        engines=tuple(_engine_address(loaded, index) for index in range(len(config.engines))),
        host=config.listen.host,
        port=config.listen.port,
        ssl=_context(loaded, config.listen.tls, "listen"),
        callers=_callers(loaded),
        admin=AdminAddress(
            config.admin.host,
            config.admin.port,
            token.get_secret_value() if token else None,
            config.admin.hosts,
        ),
        line=_line_address(loaded),
        cluster=_cluster(loaded),
        door=DoorSettings(
            light_at_once=limits.light_requests,
            first_event_s=limits.first_event,
            loop_lag_s=limits.loop_lag,
            keep_alive_s={
                _posted(loaded, path, "limits", "keep_alive", path): every_s
                for path, every_s in limits.keep_alive.items()
            }
            or None,
            ticket_key=loaded.ticket_key,
            clips=any(lane.clip is not None for lane in config.lanes),
            models=_only_models(config),
            pages=_pages(config.listen),
            cross_origin=None if cors is None else CrossOrigin(cors.origins, cors.max_age),
            coalesce={
                lane.name: CoalescingSettings(lane.coalesce.window, lane.coalesce.most_inputs)
                for lane in config.lanes
                if lane.coalesce is not None
            },
            first_lane=config.lanes[0].name,
            hands_over=hands_over and any(engine.role == "prefill" for engine in config.engines),
        ),
        server=_server_limits(limits),
        upstream=UpstreamSettings(connect_s=limits.upstream_connect, chunk_idle_s=limits.upstream_idle),
        byte_budget=limits.byte_budget,
        drain_grace_s=limits.drain_grace,
        observers=ObserverSettings(records.log_attempts, records.kept_attempts, _tracing(loaded)),
        quotas_file=config.quotas_file,
        workers=config.workers,
        certificates=certificates(loaded),
    )


def _tracing(loaded: Loaded) -> TracingSettings | None:
    tracing = loaded.config.tracing
    if tracing is None:
        return None
    headers = {name: value.get_secret_value() for name, value in loaded.trace_headers.items()}
    return TracingSettings(tracing.endpoint, tracing.share, tracing.service, headers=headers)


def extproc_settings(loaded: Loaded) -> GatewaySettings:
    """Return the settings of a gateway behind Envoy, as `gateway_settings` does: Envoy sends a request to one engine."""
    extproc = loaded.config.extproc or ExtprocConfig()
    door = ExtprocSettings(
        extproc.streams, loaded.config.limits.body, extproc.lease, dict(extproc.objectives)
    )
    context = _context(loaded, extproc.tls, "extproc", "h2")
    address = ExtprocAddress(extproc.host, extproc.port, extproc.health_port, door, context)
    return replace(gateway_settings(loaded, hands_over=False), extproc=address)


def _pages(listen: ListenConfig) -> frozenset[bytes]:
    return frozenset(
        path.encode() for path in (*listen.pass_through, *(["/healthz"] if listen.healthz else []))
    )


def _only_models(config: Config) -> frozenset[str] | None:
    """Return the models that are answered where others are not: no engine takes any name, and not all serve the same."""
    lists = {frozenset(_models(engine)) for engine in config.engines}
    if frozenset() in lists or len(lists) == 1:
        return None
    return frozenset().union(*lists)


def _models(engine: EngineConfig) -> tuple[str, ...]:
    return (*engine.models, *engine.adapters) if engine.models else ()


def _engine_address(loaded: Loaded, index: int) -> EngineAddress:
    engine = loaded.config.engines[index]
    files, api_key = engine.tls, loaded.engine_keys.get(engine.name)
    proxy = loaded.engine_proxies.get(engine.name)
    try:
        address = EngineAddress.from_url(
            engine.name,
            engine.url,
            files=None if files is None else TlsFiles(files.cert, files.key, files.ca),
            server_name=files.server_name if files is not None else None,
            api_key=api_key.get_secret_value() if api_key is not None else None,
            # A provider is asked nothing but requests: its own limits and failures say how it is.
            health=engine.health if engine.account is None else None,
            metrics=engine.metrics,
            metered=engine.account is not None,
            kv_lease_s=engine.kv_lease,
            bootstrap_port=engine.meeting_port,
            models=_models(engine),
            drains=engine.drain,
            proxy=None if proxy is None else Proxy.from_url(proxy.get_secret_value()),
        )
    except TlsError as error:
        raise _tls_problem(loaded, ("engines", index, "tls"), error) from None
    # A name that nothing was found for is nowhere: requests sent to the name itself would reach any of its addresses.
    return address if engine.discover is None else replace(address, host="", is_up=False)


def _line_address(loaded: Loaded) -> LineAddress | None:
    line, token = loaded.config.line, loaded.line_token
    if line is None:
        return None
    if line.path.partition("?")[0].encode() not in READERS:
        path, allowed = ("line", "path"), b", ".join(sorted(READERS)).decode()
        raise ConfigError(Problem(loaded.places.get(path), path, f"allowed: {allowed}"))
    door = LineSettings(line.path, LINE_LANE, token.get_secret_value() if token else None)
    context = _context(loaded, line.tls, "line")
    return LineAddress(line.host, line.port, door, context, line.heptamini_metrics)


def _cluster(loaded: Loaded) -> ClusterSettings | None:
    cluster, store = loaded.config.cluster, loaded.store
    if cluster is None or store is None:
        return None
    from millgate.cluster.connect import read_address  # with the extra

    try:
        if cluster.ca is not None:
            engine_context(TlsFiles(authorities=cluster.ca))
        read_address(store.url.get_secret_value(), {})
    except ValueError as error:
        field = error.field if isinstance(error, TlsError) else "store"
        raise _tls_problem(loaded, ("cluster",), TlsError(field, str(error))) from None
    return ClusterSettings(
        store.url.get_secret_value(),
        cluster.name,
        f"{cluster.replica or socket.gethostname()}:{_RUN}",
        cluster.user,
        store.password.get_secret_value() if store.password else None,
        cluster.ca,
        cluster.lease,
        cluster.renew_every,
        cluster.timeout,
        cluster.when_store_is_gone,
    )


def _context(
    loaded: Loaded, files: ListenTlsConfig | None, door: str, protocol: str = "http/1.1"
) -> "SSLContext | None":
    if files is None:
        return None
    try:
        return listener_context(TlsFiles(files.cert, files.key, files.client_ca), protocol)
    except TlsError as error:
        raise _tls_problem(loaded, (door, "tls"), error) from None


def _tls_problem(loaded: Loaded, section: SettingPath, error: TlsError) -> ConfigError:
    path = (*section, error.field)
    return ConfigError(Problem(loaded.places.get(path, loaded.places.get(section)), path, str(error)))


def _path_lanes(loaded: Loaded) -> Iterator[tuple[bytes, str]]:
    """Yield each path that has a lane."""
    for index, lane in enumerate(loaded.config.lanes):
        for number, name in enumerate(lane.paths):
            yield _posted(loaded, name, "lanes", index, "paths", number).encode(), lane.name


def _posted(loaded: Loaded, name: str, *path: str | int) -> str:
    """Return this path of requests; ConfigError for one that no door serves, whose setting would be for nothing."""
    if name.encode() not in BY_PATH:
        allowed = b", ".join(sorted(BY_PATH)).decode()
        raise ConfigError(Problem(loaded.places.get(path), path, f"allowed: {allowed}"))
    return name


def _callers(loaded: Loaded) -> CallerSettings:
    config = loaded.config
    rules = [
        TenantRule(
            tenant.name,
            tuple(bytes.fromhex(key.sha256) for key in tenant.keys),
            tenant.lanes,
            tenant.default_lane,
            {bytes.fromhex(key.sha256): key.expires_at for key in tenant.keys if key.expires_at is not None},
        )
        for tenant in config.tenants
    ]
    return CallerSettings(
        tenants=tuple(rules),
        open_tenants=config.tenant_from == "key",
        trusted_peers=config.listen.trusted_peers,
        lanes=tuple(lane.name for lane in config.lanes),
        path_lanes=dict(_path_lanes(loaded)),
        session_headers=tuple(name.encode() for name in config.listen.session_headers),
    )


def _server_limits(limits: LimitsConfig) -> ServerLimits:
    return ServerLimits(
        header_bytes=limits.headers,
        field_bytes=limits.header_field,
        fields=limits.header_count,
        target_bytes=limits.url,
        body_bytes=limits.body,
        head_s=limits.header_deadline,
        body_s=limits.body_deadline,
        body_rate=limits.body_rate,
        idle_s=limits.idle,
        write_stall_s=limits.write_stall,
        connections=limits.connections,
    )

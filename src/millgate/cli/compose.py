"""From a loaded configuration to a gateway that serves: find the engines, ask them, choose, build, run."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from millgate.cli.exits import CommandError, ExitCode
from millgate.cli.opening import opening_error
from millgate.config.callers import ListenTlsConfig
from millgate.config.discovered import names_of, twins_of, with_adapters, with_addresses
from millgate.config.doors import ExtprocConfig
from millgate.config.load import FileStamp, Loaded, stamp_of
from millgate.config.problems import ConfigError, Problem, SettingPath
from millgate.config.schema import Config, EngineConfig, LimitsConfig, ListenConfig
from millgate.core.settings import EngineSettings, Settings
from millgate.dialects import READERS
from millgate.gateway import (
    AdminAddress,
    ClusterSettings,
    Configuration,
    Discovery,
    DiscoverySettings,
    EngineAddress,
    ExtprocAddress,
    GatewaySettings,
    LineAddress,
    ReloadError,
    TlsError,
    TlsFiles,
    answers,
    ask_engine,
    engine_context,
    listener_context,
    serve,
)
from millgate.gateway.serve import ProcessEnding
from millgate.http1.client import UpstreamSettings
from millgate.http1.server import ServerLimits
from millgate.observe.observers import ObserverSettings
from millgate.observe.tracing import TracingSettings
from millgate.runtime.adapters import Adapters
from millgate.runtime.callers import CallerSettings, TenantRule
from millgate.runtime.clock import MonotonicClock
from millgate.runtime.gauges import Gauges
from millgate.servers.extproc.settings import ExtprocSettings
from millgate.servers.http import CoalescingSettings, CrossOrigin, DoorSettings
from millgate.servers.line import LineSettings
from millgate.wiring.chosen import EngineFacts
from millgate.wiring.governor import build_governor
from millgate.wiring.settings import LINE_LANE, Built, build_settings, with_lacking

if TYPE_CHECKING:
    from ssl import SSLContext

    from millgate.gateway import Gateway
    from millgate.gateway.workers.worker import WorkerSide

# A metrics page comes within milliseconds; an engine that is still loading is not waited for.
_ASK_WITHIN_S = 1.0
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
) -> ExitCode:
    """Serve what the configuration says until a signal ends it; `on_ready` is called when every door listens.

    With `behind_envoy` requests come to the external processor, and the HTTP door is not opened. `worker` is the channel to a
    supervisor, None in a process alone.

    At SIGHUP `reload` reads the configuration anew. Raises CommandError when an address cannot be had, a file
    cannot be used, or a chosen name does not exist.
    """
    settings_of = extproc_settings if behind_envoy else gateway_settings
    sized = SizedConfiguration(loaded, settings_of=settings_of if worker is None else worker_settings)
    try:
        settings, built = await sized.ask()
    except ConfigError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None
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


class SizedConfiguration:
    """The configuration in force, with the engines that were found and with what they have told of their size.

    What an engine has told stays while it is down, so that it keeps its limits.
    """

    def __init__(
        self,
        loaded: Loaded,
        discovery: Discovery | None = None,
        settings_of: Callable[[Loaded], GatewaySettings] | None = None,
    ) -> None:
        self._settings_of = settings_of or gateway_settings
        self.discovery = discovery or Discovery(_stamp)
        self._written = loaded
        self._loaded = loaded
        self._addresses: tuple[EngineAddress, ...] = ()
        self._facts: dict[str, EngineFacts] = {}
        self._adapters: dict[str, Adapters] = {}
        self._limits: Mapping[str, EngineSettings] = {}

    async def ask(self) -> tuple[GatewaySettings, Built]:
        """Find the engines, ask every one for its size once, and build; ConfigError where that cannot be done."""
        await self.discovery.find(names_of(self._written))
        self.discovery.aim(_targets(self._written))
        loaded, settings = self._found(self._written)
        self._facts |= await ask_engines(loaded.config, settings.engines)
        return settings, self._take(loaded, settings)

    async def reload(self, read: Callable[[], Loaded]) -> Configuration:
        """Read the configuration anew, away from the loop: files may be large and disks slow; raises ReloadError."""
        try:
            written = await asyncio.to_thread(_read, read)
            await self.discovery.find(names_of(written))
            loaded, settings = await self._look(written)
            told = await ask_engines(loaded.config, settings.engines)
            self._facts |= {name: fact for name, fact in told.items() if fact.kv_tokens is not None}
            change = self._change(loaded, settings)
        except (ConfigError, CommandError) as error:
            raise ReloadError(str(error)) from None
        self._written = written
        self.discovery.aim(_targets(written))
        return change._replace(resized=())

    async def refill(self) -> Configuration:
        """Read the file of engines anew and nothing else; raises ReloadError."""
        sources = self._written.sources
        assert sources is not None
        return await self.reload(sources.read)

    def told(self, engine: str, gauges: Gauges) -> bool:
        """Take what an engine says of its size; return whether its limits may be others now."""
        fact = EngineFacts(gauges.kv_tokens, gauges.model)
        if not any(each.name == engine for each in _unsure(self._loaded.config)):
            return False
        if self._facts.get(engine) == fact:
            return False
        self._facts[engine] = fact
        return True

    def lists(self, engine: str, adapters: Adapters) -> bool:
        """Take which adapters an engine says that it has; return whether that changes anything: without any in the fleet it does not."""
        before = self._adapters.get(engine)
        self._adapters[engine] = adapters
        return before != adapters and any((before, *self._adapters.values()))

    async def fit(self) -> Configuration:
        """Return the configuration in force with the engines that are found now, and the limits that they have told."""
        try:
            loaded, settings = await self._look(self._written)
            fresh = [each for each in settings.engines if each.name not in self._limits]
            self._facts |= await ask_engines(loaded.config, fresh)
            return self._change(loaded, settings)
        except ConfigError as error:
            raise ReloadError(str(error)) from None

    def _found(self, written: Loaded) -> tuple[Loaded, GatewaySettings]:
        """Return the configuration with the engines that were found; ConfigError where two have one name."""
        loaded = with_adapters(with_addresses(written, self.discovery.found), self._adapters)
        if twins := twins_of(loaded):
            raise ConfigError(
                Problem(None, ("engines",), f"two names have the same address: {', '.join(twins)}")
            )
        return loaded, self._settings_of(loaded)

    async def _look(self, written: Loaded) -> tuple[Loaded, GatewaySettings]:
        """Return the configuration with the engines that are found now; those that are new are looked at first."""
        loaded, settings = self._found(written)
        known = {each.name: each.place for each in self._addresses}
        fresh = [each for each in settings.engines if each.host and known.get(each.name) != each.place]
        well = await asyncio.gather(*(answers(each, _ASK_WITHIN_S) for each in fresh))
        unseen = {each.name for each, is_well in zip(fresh, well, strict=True) if not is_well}
        engines = tuple(
            replace(each, is_up=False) if each.name in unseen else each for each in settings.engines
        )
        return loaded, replace(settings, engines=engines)

    def _change(self, loaded: Loaded, settings: GatewaySettings) -> Configuration:
        """Take this configuration, and return it with what differs from the one before."""
        before = self._limits
        built = self._take(loaded, settings)
        resized = [
            _resized(before[each.name], each)
            for each in built.settings.engines
            if each.name in before and _size(each) != _size(before[each.name])
        ]
        came = tuple(name for name in self._limits if name not in before)
        gone = tuple(name for name in before if name not in self._limits)
        return Configuration(settings, built.settings, tuple(resized), came, gone)

    def _take(self, loaded: Loaded, settings: GatewaySettings) -> Built:
        built = build_settings(loaded.config, self._facts, loaded.places)
        built = built._replace(settings=with_lacking(built.settings, self._adapters))
        self._loaded, self._addresses = loaded, settings.engines
        self._limits = {engine.name: engine for engine in built.settings.engines}
        self._facts = {name: fact for name, fact in self._facts.items() if name in self._limits}
        self._adapters = {name: each for name, each in self._adapters.items() if name in self._limits}
        return built._replace(settings=_standing(built.settings, settings.engines))


def _standing(settings: Settings, addresses: Iterable[EngineAddress]) -> Settings:
    """Return the core's settings with the engines that take no work at first."""
    down = {each.name for each in addresses if not each.is_up}
    engines = tuple(replace(each, is_up=False) if each.name in down else each for each in settings.engines)
    return replace(settings, engines=engines)


def _targets(loaded: Loaded) -> DiscoverySettings:
    section = loaded.config.discovery
    return DiscoverySettings(names_of(loaded), section.every, section.file, loaded.engines_stamp)


def _stamp(file: Path) -> FileStamp | None:
    try:
        return stamp_of(file.stat())
    except OSError:
        return None


def _size(engine: EngineSettings) -> tuple[int, int | None]:
    return engine.max_inflight, engine.kv_tokens


def _resized(before: EngineSettings, now: EngineSettings) -> Mapping[str, object]:
    return {
        "engine": now.name,
        "max_inflight": now.max_inflight,
        "kv_tokens": now.kv_tokens,
        "max_inflight_before": before.max_inflight,
        "kv_tokens_before": before.kv_tokens,
    }


def _read(reload: Callable[[], Loaded]) -> Loaded:
    """Read the configuration and look at its certificates, so that a wrong one is refused before engines are asked."""
    loaded = reload()
    gateway_settings(loaded)
    return loaded


async def ask_engines(config: Config, addresses: Iterable[EngineAddress]) -> dict[str, EngineFacts]:
    """Return what the engines tell of their size, by name; those whose limits are given are not asked."""
    names = {engine.name for engine in _unsure(config)}
    unsure = [address for address in addresses if address.name in names and address.host]
    answers = await asyncio.gather(*(ask_engine(address, _ASK_WITHIN_S) for address in unsure))
    return {
        address.name: EngineFacts(is_seen=False)
        if answer is None
        else EngineFacts(answer.kv_tokens, answer.model)
        for address, answer in zip(unsure, answers, strict=True)
    }


def _unsure(config: Config) -> list[EngineConfig]:
    """Return the engines whose limits are not all given."""
    return [
        engine
        for engine in config.engines
        if engine.account is None and (engine.max_inflight is None or engine.kv_tokens is None)
    ]


def worker_settings(loaded: Loaded) -> GatewaySettings:
    """Return the settings of one worker: the store is its supervisor's where none is named."""
    settings = gateway_settings(loaded)
    return replace(settings, cluster=settings.cluster or _SUPERVISED)


def gateway_settings(loaded: Loaded) -> GatewaySettings:
    """Return the gateway's addresses, bounds and deadlines; ConfigError for TLS files that cannot be used."""
    config, token = loaded.config, loaded.admin_token
    limits, records = config.limits, config.records
    return GatewaySettings(
        engines=tuple(_engine_address(loaded, index) for index in range(len(config.engines))),
        host=config.listen.host,
        port=config.listen.port,
        ssl=_context(loaded, config.listen.tls, "listen"),
        callers=_callers(config),
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
            keep_alive_s=limits.keep_alive or None,
            ticket_key=loaded.ticket_key,
            clips=any(lane.clip is not None for lane in config.lanes),
            models=_only_models(config),
            pages=_pages(config.listen),
            cross_origin=_cross_origin(config.listen),
            coalesce={
                lane.name: CoalescingSettings(lane.coalesce.window, lane.coalesce.most_inputs)
                for lane in config.lanes
                if lane.coalesce is not None
            },
            first_lane=config.lanes[0].name,
            hands_over=any(engine.role == "prefill" for engine in config.engines),
        ),
        server=_server_limits(limits),
        upstream=UpstreamSettings(connect_s=limits.upstream_connect, chunk_idle_s=limits.upstream_idle),
        byte_budget=limits.byte_budget,
        drain_grace_s=limits.drain_grace,
        observers=ObserverSettings(records.log_attempts, records.kept_attempts, _tracing(loaded)),
        workers=config.workers,
    )


def _tracing(loaded: Loaded) -> TracingSettings | None:
    tracing = loaded.config.tracing
    if tracing is None:
        return None
    headers = {name: value.get_secret_value() for name, value in loaded.trace_headers.items()}
    return TracingSettings(tracing.endpoint, tracing.share, tracing.service, headers=headers)


def extproc_settings(loaded: Loaded) -> GatewaySettings:
    """Return the settings of a gateway behind Envoy, as `gateway_settings` does."""
    extproc = loaded.config.extproc or ExtprocConfig()
    door = ExtprocSettings(
        extproc.streams, loaded.config.limits.body, extproc.lease, dict(extproc.objectives)
    )
    context = _context(loaded, extproc.tls, "extproc", "h2")
    address = ExtprocAddress(extproc.host, extproc.port, extproc.health_port, door, context)
    return replace(gateway_settings(loaded), extproc=address)


def _pages(listen: ListenConfig) -> frozenset[bytes]:
    return frozenset(
        path.encode() for path in (*listen.pass_through, *(["/healthz"] if listen.healthz else []))
    )


def _cross_origin(listen: ListenConfig) -> CrossOrigin | None:
    cors = listen.cors
    return None if cors is None else CrossOrigin(cors.origins, cors.max_age)


def _only_models(config: Config) -> frozenset[str] | None:
    """Return the models that are answered where others are not: no engine takes any name, and not all serve the same."""
    lists = {
        frozenset((*engine.models, *engine.adapters)) if engine.models else frozenset()
        for engine in config.engines
    }
    if frozenset() in lists or len(lists) == 1:
        return None
    return frozenset().union(*lists)


def _engine_address(loaded: Loaded, index: int) -> EngineAddress:
    engine = loaded.config.engines[index]
    files, api_key = engine.tls, loaded.engine_keys.get(engine.name)
    try:
        address = EngineAddress.from_url(
            engine.name,
            engine.url,
            files=None if files is None else TlsFiles(files.cert, files.key, files.ca),
            server_name=files.server_name if files is not None else None,
            api_key=api_key.get_secret_value() if api_key is not None else None,
            # A provider is asked nothing but requests: its own limits and failures say how it is.
            health=engine.health if engine.account is None else None,
            metered=engine.account is not None,
            kv_lease_s=engine.kv_lease,
            bootstrap_port=engine.meeting_port,
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


def _callers(config: Config) -> CallerSettings:
    """Return the callers that are admitted, digests as bytes and lanes by path."""
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
        path_lanes={path.encode(): lane.name for lane in config.lanes for path in lane.paths},
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

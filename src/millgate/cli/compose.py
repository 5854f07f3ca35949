"""From a loaded configuration to a gateway that serves: ask the engines, choose, build, run."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from millgate.cli.exits import CommandError, ExitCode
from millgate.cli.opening import log_error
from millgate.cli.ports import address_error
from millgate.config.callers import ListenTlsConfig
from millgate.config.load import Loaded
from millgate.config.problems import ConfigError, Problem, SettingPath
from millgate.config.schema import Config, EngineConfig, LimitsConfig, ListenConfig
from millgate.core.settings import EngineSettings
from millgate.gateway import (
    AdminAddress,
    Configuration,
    EngineAddress,
    GatewaySettings,
    LineAddress,
    ReloadError,
    TlsError,
    TlsFiles,
    ask_engine,
    listener_context,
    serve,
)
from millgate.gateway.serve import ProcessEnding
from millgate.observe.observers import ObserverSettings
from millgate.runtime.callers import CallerSettings, TenantRule
from millgate.runtime.clock import MonotonicClock
from millgate.runtime.gauges import Gauges
from millgate.runtime.upstream import UpstreamSettings
from millgate.servers.http import DoorSettings
from millgate.servers.http1 import ServerLimits
from millgate.servers.line import LineSettings
from millgate.wiring.chosen import EngineFacts
from millgate.wiring.governor import build_governor
from millgate.wiring.settings import LINE_LANE, Built, build_settings

if TYPE_CHECKING:
    from ssl import SSLContext

    from millgate.gateway import Gateway

# A metrics page comes within milliseconds; an engine that is still loading is not waited for.
_ASK_WITHIN_S = 1.0


async def serve_configuration(
    loaded: Loaded,
    on_ready: Callable[["Gateway", Built], None],
    reload: Callable[[], Loaded] | None = None,
) -> ExitCode:
    """Serve what the configuration says until a signal ends it; `on_ready` is called when every door listens.

    At SIGHUP `reload` reads the configuration anew. Raises CommandError when an address cannot be had, a file
    cannot be used, or a chosen name does not exist.
    """
    sized = SizedConfiguration(loaded)
    try:
        settings, built = await sized.ask()
    except ConfigError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None
    governor = build_governor(built.settings, MonotonicClock.now())
    fetch = None if reload is None else partial(sized.reload, reload)
    try:
        ending = await serve(
            governor, settings, on_ready=lambda gateway: on_ready(gateway, built), fetch=fetch, sizes=sized
        )
    except OSError as error:
        raise _address_error(error, loaded.config) from None
    return ExitCode.OK if ending is ProcessEnding.DRAINED else ExitCode.INTERRUPTED


class SizedConfiguration:
    """The configuration in force, with what its engines have told of their size.

    What an engine has told stays while it is down, so that it keeps its limits.
    """

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._facts: dict[str, EngineFacts] = {}
        self._limits: Mapping[str, EngineSettings] = {}

    async def ask(self) -> tuple[GatewaySettings, Built]:
        """Ask every engine for its size once, and build; ConfigError where that cannot be done."""
        settings = gateway_settings(self._loaded)
        self._facts |= await ask_engines(self._loaded.config, settings.engines)
        return settings, self._build(self._loaded)

    async def reload(self, read: Callable[[], Loaded]) -> Configuration:
        """Read the configuration anew, away from the loop: files may be large and disks slow; raises ReloadError."""
        try:
            loaded, settings = await asyncio.to_thread(_read, read)
            told = await ask_engines(loaded.config, settings.engines)
            self._facts |= {name: fact for name, fact in told.items() if fact.kv_tokens is not None}
            built = self._build(loaded)
        except (ConfigError, CommandError) as error:
            raise ReloadError(str(error)) from None
        self._loaded = loaded
        return Configuration(settings, built.settings)

    def told(self, engine: str, gauges: Gauges) -> bool:
        """Take what an engine says of its size; return whether its limits may be others now."""
        fact = EngineFacts(gauges.kv_tokens, gauges.model)
        if not any(each.name == engine for each in _unsure(self._loaded.config)):
            return False
        if self._facts.get(engine) == fact:
            return False
        self._facts[engine] = fact
        return True

    async def fit(self) -> Configuration:
        """Return the configuration in force with the limits that follow from what engines have told."""
        before = self._limits
        try:
            settings, built = gateway_settings(self._loaded), self._build(self._loaded)
        except ConfigError as error:
            raise ReloadError(str(error)) from None
        resized = [
            _resized(before[each.name], each)
            for each in built.settings.engines
            if each.name in before and _size(each) != _size(before[each.name])
        ]
        return Configuration(settings, built.settings, tuple(resized))

    def _build(self, loaded: Loaded) -> Built:
        built = build_settings(loaded.config, self._facts, loaded.places)
        self._limits = {engine.name: engine for engine in built.settings.engines}
        return built


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


def _read(reload: Callable[[], Loaded]) -> tuple[Loaded, GatewaySettings]:
    loaded = reload()
    return loaded, gateway_settings(loaded)


async def ask_engines(config: Config, addresses: tuple[EngineAddress, ...]) -> dict[str, EngineFacts]:
    """Return what the engines tell of their size, by name; those whose limits are given are not asked."""
    names = {engine.name for engine in _unsure(config)}
    unsure = [address for address in addresses if address.name in names]
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


def gateway_settings(loaded: Loaded) -> GatewaySettings:
    """Return the gateway's addresses, bounds and deadlines; ConfigError for TLS files that cannot be used."""
    config, token = loaded.config, loaded.admin_token
    limits = config.limits
    return GatewaySettings(
        engines=tuple(_engine_address(loaded, index) for index in range(len(config.engines))),
        host=config.listen.host,
        port=config.listen.port,
        ssl=_listener_tls(loaded),
        callers=_callers(config),
        admin=AdminAddress(
            config.admin.host,
            config.admin.port,
            token.get_secret_value() if token else None,
            config.admin.hosts,
        ),
        line=_line_address(loaded),
        door=DoorSettings(
            light_at_once=limits.light_requests,
            first_event_s=limits.first_event,
            loop_lag_s=limits.loop_lag,
            keep_alive_s=limits.keep_alive or None,
            ticket_key=loaded.ticket_key,
            clips=any(lane.clip is not None for lane in config.lanes),
            models=_only_models(config),
            pages=_pages(config.listen),
        ),
        server=_server_limits(limits),
        upstream=UpstreamSettings(connect_s=limits.upstream_connect, chunk_idle_s=limits.upstream_idle),
        byte_budget=limits.byte_budget,
        drain_grace_s=limits.drain_grace,
        observers=ObserverSettings(config.records.log_attempts, config.records.kept_attempts),
    )


def _pages(listen: ListenConfig) -> frozenset[bytes]:
    return frozenset(
        path.encode() for path in (*listen.pass_through, *(["/healthz"] if listen.healthz else []))
    )


def _only_models(config: Config) -> frozenset[str] | None:
    """Return the models that are answered where others are not: no engine takes any name, and not all serve the same."""
    lists = {frozenset(engine.models) for engine in config.engines}
    if frozenset() in lists or len(lists) == 1:
        return None
    return frozenset().union(*lists)


def _engine_address(loaded: Loaded, index: int) -> EngineAddress:
    engine = loaded.config.engines[index]
    files = engine.tls
    api_key = loaded.engine_keys.get(engine.name)
    try:
        return EngineAddress.from_url(
            engine.name,
            engine.url,
            files=None if files is None else TlsFiles(files.cert, files.key, files.ca),
            server_name=files.server_name if files is not None else None,
            api_key=api_key.get_secret_value() if api_key is not None else None,
            # A provider is asked nothing but requests: its own limits and failures say how it is.
            health=engine.health if engine.account is None else None,
            metered=engine.account is not None,
        )
    except TlsError as error:
        raise _tls_problem(loaded, ("engines", index, "tls"), error) from None


def _line_address(loaded: Loaded) -> LineAddress | None:
    line, token = loaded.config.line, loaded.line_token
    if line is None:
        return None
    door = LineSettings(line.path, LINE_LANE, token.get_secret_value() if token else None)
    context = _context(loaded, line.tls, "line")
    return LineAddress(line.host, line.port, door, context, line.heptamini_metrics)


def _listener_tls(loaded: Loaded) -> "SSLContext | None":
    return _context(loaded, loaded.config.listen.tls, "listen")


def _context(loaded: Loaded, files: ListenTlsConfig | None, door: str) -> "SSLContext | None":
    if files is None:
        return None
    try:
        return listener_context(TlsFiles(files.cert, files.key, files.client_ca))
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
            tuple(bytes.fromhex(key) for key in tenant.keys),
            tenant.lanes,
            tenant.default_lane,
        )
        for tenant in config.tenants
    ]
    return CallerSettings(
        tenants=tuple(rules),
        open_tenants=config.tenant_from == "key",
        trusted_peers=config.listen.trusted_peers,
        lanes=tuple(lane.name for lane in config.lanes),
        path_lanes={path.encode(): lane.name for lane in config.lanes for path in lane.paths},
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


def _address_error(error: OSError, config: Config) -> CommandError:
    """The log names its path in the error; of the doors only the admin door names its address."""
    if (log := config.records.log_attempts) is not None and error.filename == log:
        return log_error(log, error)
    if error.filename is not None:
        return address_error(error, config.admin.host, config.admin.port, "--admin-port")
    return address_error(error, config.listen.host, config.listen.port, "--port")

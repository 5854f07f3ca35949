"""What only the whole configuration can tell: names that point nowhere, doors left open, secrets that are missing."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

from pydantic import SecretStr

from millgate.config.cluster import check_store
from millgate.config.problems import ConfigError, Problem, SettingPath, ValueOrigin
from millgate.config.schema import Config
from millgate.config.units import format_duration
from millgate.config.values import is_loopback, is_proxy

_LONGEST_SECRET = 4096
_LONGEST_FILE = 16 * _LONGEST_SECRET
_MOST_PORT: Final = 65_535
_SHORTEST_ADMIN_TOKEN = 16
"""Characters; with 30 guesses a minute even one of digits alone is not found."""
_HEADER_NAME: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,64}")
_OTHER_ROLE: Final = {"prefill": "decode", "decode": "prefill"}
_WILDCARDS: Final = frozenset(("0.0.0.0", "::"))  # noqa: S104 - compared with, not bound to
_TICKET_KEY = re.compile(r"(?:[0-9A-Fa-f]{2}){32,64}")


class StoreSecrets(NamedTuple):
    """Where the cluster's store is, credentials included where the environment gives them, and its password."""

    url: SecretStr
    password: SecretStr | None


def check_whole(config: Config, places: Mapping[SettingPath, ValueOrigin]) -> None:
    """Raise ConfigError with every setting that contradicts another."""
    found = [
        *_exposure(config),
        *_doors(config),
        *_servers(config),
        *_tenants(config),
        *_lane_paths(config),
        *_classes(config),
        *_limits(config),
        *_quotas(config),
        *_named_lanes(config),
        *_roles(config),
        *_metrics_ports(config),
        *_adapters(config),
        *_required_places(config),
    ]
    if found:
        raise ConfigError(*(Problem(_place(path, places), path, message) for path, message in found))


class SecretsReader:
    """Reads what the configuration names of the environment; ConfigError says what is missing or wrong, and repeats none of it.

    Where a variable is not set, one of its name and `_FILE` may name a file that holds the secret, which is read anew with each configuration.
    """

    def __init__(
        self, config: Config, environ: Mapping[str, str], places: Mapping[SettingPath, ValueOrigin]
    ) -> None:
        self._config = config
        self._environ = environ
        self._places = places

    def admin_token(self) -> SecretStr | None:
        """Return the admin token, None without one; ConfigError where the address needs one."""
        admin = self._config.admin
        token = self._value(admin.token_env)
        if not token and not is_loopback(admin.host):
            raise ConfigError(self._problem(("admin", "host"), _exposed(admin.host, admin.token_env)))
        if token and len(token) < _SHORTEST_ADMIN_TOKEN:
            message = f"the token in {admin.token_env} is shorter than {_SHORTEST_ADMIN_TOKEN} characters"
            raise ConfigError(self._problem(("admin", "token_env"), message))
        if message := _unfit(admin.token_env, token):
            raise ConfigError(self._problem(("admin", "token_env"), message))
        return SecretStr(token) if token else None

    def line_token(self) -> SecretStr | None:
        """Return the token of the line door, None without one; ConfigError where the address needs one."""
        line = self._config.line
        if line is None:
            return None
        token = self._value(line.token_env)
        if not token and not line.insecure and not is_loopback(line.host):
            raise ConfigError(self._problem(("line", "host"), _exposed(line.host, line.token_env)))
        return SecretStr(token) if token else None

    def ticket_secret(self) -> SecretStr | None:
        """Return the key of tickets in hexadecimal, None where none is named; ConfigError for one that is no key."""
        name = self._config.retries.ticket_key_env
        if name is None:
            return None
        value = self._value(name)
        if not _TICKET_KEY.fullmatch(value):
            message = f"{_called(name, 'ticket_key_env')} must hold 32 to 64 bytes in hexadecimal digits"
            raise ConfigError(self._problem(("retries", "ticket_key_env"), message))
        return SecretStr(value)

    def store(self) -> StoreSecrets | None:
        """Return the address of the cluster's store and its password, None without a cluster; ConfigError for a cluster that is not whole."""
        cluster = self._config.cluster
        if cluster is None:
            return None
        problems, place = list[Problem](), _place(("cluster",), self._places)
        url = cluster.store or self._value(cluster.store_env)
        try:
            check_store(url)
        except ValueError as error:
            message = f"is not set, and {_called(cluster.store_env, 'store_env')} {error}"
            problems.append(Problem(place, ("cluster", "store"), message))
        if self._config.retries.ticket_key_env is None:
            message = (
                "replicas of a cluster need one key for their tickets: name an environment variable here that holds "
                "64 hexadecimal digits, the same at every replica, as `openssl rand -hex 32` prints them"
            )
            problems.append(Problem(place, ("retries", "ticket_key_env"), message))
        if problems:
            raise ConfigError(*problems)
        password = self._value(cluster.password_env)
        return StoreSecrets(SecretStr(url), SecretStr(password) if password else None)

    def trace_headers(self) -> dict[str, SecretStr]:
        """Return the headers for the collector of traces; ConfigError for text that is no list of headers, without repeating it."""
        tracing = self._config.tracing
        if tracing is None:
            return {}
        headers = {}
        for item in filter(None, self._value(tracing.headers_env).split(",")):
            name, is_pair, text = item.partition("=")
            name, text = name.strip().lower(), unquote(text.strip())
            if not (is_pair and _HEADER_NAME.fullmatch(name) and text.isascii() and text.isprintable()):
                message = f"{_called(tracing.headers_env, 'headers_env')} must hold name=value,name=value for headers"
                raise ConfigError(self._problem(("tracing", "headers_env"), message))
            headers[name] = SecretStr(text)
        return headers

    def engine_keys(self) -> dict[str, SecretStr]:
        """Return the engines' credentials by engine; ConfigError for one that is not there or cannot be a header."""
        return self._of_engines("api_key_env", _unfit)

    def engine_proxies(self) -> dict[str, SecretStr]:
        """Return the addresses of the engines' proxies by engine, credentials included; ConfigError for one that is not there or is none."""
        written = {each.name: SecretStr(each.proxy) for each in self._config.engines if each.proxy}
        return written | self._of_engines("proxy_env", _no_proxy)

    def _of_engines(self, field: str, fault_of: Callable[[str, str], str]) -> dict[str, SecretStr]:
        """Return the secrets in the variables that this setting of engines names; `fault_of` says what is wrong with one."""
        secrets, problems = {}, []
        for index, engine in enumerate(self._config.engines):
            variable = getattr(engine, field)
            if variable is None:
                continue
            value = self._value(variable)
            fault = fault_of(variable, value) if value else f"{_called(variable, field)} is not set"
            if fault:
                problems.append(self._problem(("engines", index, field), fault))
            else:
                secrets[engine.name] = SecretStr(value.strip())
        if problems:
            raise ConfigError(*problems)
        return secrets

    def _value(self, variable: str) -> str:
        of_file = f"{variable}_FILE"
        value, file, fault = self._environ.get(variable, ""), self._environ.get(of_file, ""), ""
        if file and value:
            fault = "is set, and so is the variable of that name without `_FILE`: give one"
        elif file:
            value, fault = _content(file)
        if fault:
            raise ConfigError(Problem(None, (), f"{_called(of_file, '_env')} {fault}"))
        return value

    def _problem(self, path: SettingPath, message: str) -> Problem:
        return Problem(_place(path, self._places), path, message)


def _content(file: str) -> tuple[str, str]:
    """Return the secret in this file, and what is wrong with the file; one of them is empty."""
    try:
        with Path(file).open("rb") as stream:
            return stream.read(_LONGEST_FILE).decode("utf-8-sig").strip(), ""
    except OSError as error:
        return "", f"names a file that cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        return "", "names a file that is no UTF-8 text"


def _called(variable: str, setting: str) -> str:
    """Return what to call the variable of a setting: a secret that was pasted in place of the name has small letters, and is not repeated."""
    return f"the environment variable {variable if variable.isupper() else f'that `{setting}` names'}"


def _unfit(variable: str, secret: str) -> str:
    """Say that this variable's secret cannot stand in a header; nothing where it can."""
    fits = secret.isascii() and secret.isprintable() and len(secret) <= _LONGEST_SECRET
    return "" if fits else f"{_called(variable, 'api_key_env')} holds what cannot stand in a header"


def _no_proxy(variable: str, url: str) -> str:
    """Say that this variable holds no proxy; nothing where it does."""
    fits = is_proxy(url.strip())
    return "" if fits else f"{_called(variable, 'proxy_env')} must hold http://[user:password@]host:port"


def _exposure(config: Config) -> Iterator[tuple[SettingPath, str]]:
    listen = config.listen
    authenticated = config.tenants or (listen.tls is not None and listen.tls.client_ca is not None)
    if not listen.insecure and not authenticated and not is_loopback(listen.host):
        remedy = "add `tenants`, or --insecure (listen.insecure: true) if that is meant"
        message = f"{listen.host} can be reached from outside and no client keys are configured: {remedy}"
        yield ("listen", "host"), message


def _doors(config: Config) -> Iterator[tuple[SettingPath, str]]:
    """Find doors that take each other's address; the HTTP door and the external processor are never open together."""
    doors = [(name, "port", getattr(config, name)) for name in ("listen", "admin", "line", "extproc")]
    doors.append(("extproc", "health_port", config.extproc))
    for (name, field, door), (other, other_field, other_door) in combinations(doors, 2):
        if door is None or other_door is None or (name, other) == ("listen", "extproc"):
            continue
        host, port = other_door.host, getattr(other_door, other_field)
        if port and port == getattr(door, field) and _meet(door.host, host):
            yield (other, other_field), f"{host}:{port} is taken by `{name}.{field}`: give each door its own"


def _meet(*hosts: str) -> bool:
    """Return whether doors on both hosts take the same address: a wildcard takes all of its family."""
    one, other = [host.replace("localhost", "127.0.0.1") for host in hosts]
    return one == other or ((":" in one) is (":" in other) and not _WILDCARDS.isdisjoint((one, other)))


def _servers(config: Config) -> Iterator[tuple[SettingPath, str]]:
    """Find engines that are one server, which would get the caps of both; a provider's accounts may share an address."""
    owners: dict[tuple[str, frozenset[str]], str] = {}
    for index, engine in enumerate(config.engines):
        server = engine.url.rstrip("/").removesuffix("/v1").rstrip("/"), frozenset(engine.models)
        if engine.account is None and (owner := owners.setdefault(server, engine.name)) != engine.name:
            yield ("engines", index, "url"), f"is that of {owner} too, and would get both caps: name it once"


def _tenants(config: Config) -> Iterator[tuple[SettingPath, str]]:
    if config.tenants and config.tenant_from is not None:
        yield ("tenant_from",), "makes tenants of unknown credentials, `tenants` refuses them: give one"
    lanes = {lane.name for lane in config.lanes}
    owners: dict[str, str] = {}
    for index, tenant in enumerate(config.tenants):
        for field, names in (("lanes", tenant.lanes), ("default_lane", (tenant.default_lane,))):
            strangers = [name for name in names if name is not None and name not in lanes]
            if strangers:
                yield ("tenants", index, field), _no_lane(", ".join(strangers), lanes)
        for number, key in enumerate(tenant.keys):
            if key.sha256 in owners:
                yield (
                    ("tenants", index, "keys", number),
                    f"is a key of the tenant {owners[key.sha256]} already",
                )
            owners[key.sha256] = tenant.name


def _lane_paths(config: Config) -> Iterator[tuple[SettingPath, str]]:
    owners: dict[str, str] = {}
    for index, lane in enumerate(config.lanes):
        if lane.window and 0 in {lane.max_queue, lane.max_wait}:
            yield ("lanes", index, "window"), "holds work, and `max_queue` or `max_wait` lets none wait"
        for number, path in enumerate(lane.paths):
            if owners.setdefault(path, lane.name) != lane.name:
                yield ("lanes", index, "paths", number), f"is a path of the lane {owners[path]} too"


def _classes(config: Config) -> Iterator[tuple[SettingPath, str]]:
    first, owners = config.lanes[0], dict[tuple[str, float], str]()
    for index, lane in enumerate(config.lanes):
        by_size = lane.takes not in {None, "agents"}
        if lane.over is not None and not by_size:
            yield ("lanes", index, "over"), "has no meaning in a lane that `takes` no requests by size"
        if lane.takes is None:
            continue
        if lane is first:
            yield ("lanes", index, "takes"), "is for other lanes: the first takes what no other does"
        elif (owner := owners.setdefault((lane.takes, lane.over_s(first)), lane.name)) != lane.name:
            of = f"{lane.takes} over {format_duration(lane.over_s(first))}" if by_size else lane.takes
            remedy = ": give `over`" if by_size else ""
            yield ("lanes", index, "takes"), f"{of} are those of the lane {owner}{remedy}"


def _limits(config: Config) -> Iterator[tuple[SettingPath, str]]:
    if any(lane.tpot_slo is not None for lane in config.lanes):
        return
    for index, engine in enumerate(config.engines):
        if engine.limit.kind == "slo_gradient" and engine.limit.tpot_slo is None:
            yield (
                ("engines", index, "limit", "kind"),
                "slo_gradient has no `tpot_slo` to keep: give one, of a lane or here",
            )


def _quotas(config: Config) -> Iterator[tuple[SettingPath, str]]:
    lanes = {lane.name for lane in config.lanes}
    tenants = {tenant.name for tenant in config.tenants}
    named_elsewhere = bool(config.listen.trusted_peers) or config.tenant_from is not None
    for index, quota in enumerate(config.quotas):
        if quota.lane is not None and quota.lane not in lanes:
            yield ("quotas", index, "lane"), _no_lane(quota.lane, lanes)
        if quota.tenant is not None and quota.tenant not in tenants and (tenants or not named_elsewhere):
            yield ("quotas", index, "tenant"), f"names no tenant: {quota.tenant}"


def _named_lanes(config: Config) -> Iterator[tuple[SettingPath, str]]:
    lanes = {lane.name: lane for lane in config.lanes}
    for objective, lane_name in ({} if config.extproc is None else config.extproc.objectives).items():
        if lane_name not in lanes:
            yield ("extproc", "objectives", objective), _no_lane(lane_name, lanes)
    for index, lane in enumerate(config.lanes):
        if lane.demote is None:
            continue
        if lane.demote not in lanes or lane.demote == lane.name:
            yield ("lanes", index, "demote"), f"names no other lane: {lane.demote}"
        elif lanes[lane.demote].demote is not None:
            yield (
                ("lanes", index, "demote"),
                f"leads to {lane.demote}, which demotes again: one step is enough",
            )


def _roles(config: Config) -> Iterator[tuple[SettingPath, str]]:
    """Find engines with one role of two whose other one no engine has, and settings of a transfer that they do not have."""
    models = {
        role: {
            (frozenset(engine.models), engine.kv_transfer) for engine in config.engines if engine.role == role
        }
        for role in ("prefill", "decode")
    }
    for index, engine in enumerate(config.engines):
        own, is_sglang = frozenset(engine.models), engine.kv_transfer == "sglang"
        if engine.bootstrap_port is not None and not (is_sglang and engine.role == "prefill"):
            yield ("engines", index, "bootstrap_port"), "needs `role: prefill` and `kv_transfer: sglang`"
        if engine.role == "unified":
            if is_sglang:
                yield ("engines", index, "kv_transfer"), "needs `role: prefill` or `role: decode`"
            continue
        if engine.overflow:
            yield ("engines", index, "overflow"), "is for engines with `role: unified`"
        other, path = _OTHER_ROLE[engine.role], ("engines", index, "role")
        if engine.account is not None:
            yield path, "is for engines of your own: a provider's `account` hands nothing over"
        elif not models[other]:
            yield path, f"{engine.role} needs an engine with `role: {other}`"
        elif own not in {each for each, _ in models[other]}:
            yield path, f"{engine.role} needs an engine with `role: {other}` and the same `models`"
        elif (own, engine.kv_transfer) not in models[other]:
            path = ("engines", index, "kv_transfer")
            yield (
                path,
                f"{engine.kv_transfer} needs an engine with `role: {other}` and the same `kv_transfer`",
            )


def _metrics_ports(config: Config) -> Iterator[tuple[SettingPath, str]]:
    for index, engine in enumerate(config.engines):
        port = (engine.metrics or "").partition("/")[0].removeprefix(":")
        if port and int(port) > _MOST_PORT:
            yield ("engines", index, "metrics"), f"port {port} is above {_MOST_PORT}"


def _required_places(config: Config) -> Iterator[tuple[SettingPath, str]]:
    """Find engines that require a place of which they do not say where it is, or in which none has the other role."""
    for index, engine in enumerate(config.engines):
        required, path = engine.labels.required, ("engines", index, "labels", "required")
        if required is None:
            continue
        place = getattr(engine.labels, required)
        if engine.role == "unified":
            yield path, "is for engines with `role: prefill` or `role: decode`: only these hand prompts over"
        elif place is None:
            yield path, f"needs the label `{required}` beside it"
        elif not any(
            each.role == _OTHER_ROLE[engine.role] and getattr(each.labels, required) == place
            for each in config.engines
        ):
            yield path, f"no engine with `role: {_OTHER_ROLE[engine.role]}` has `{required}: {place}`"


def _adapters(config: Config) -> Iterator[tuple[SettingPath, str]]:
    """Find adapters that are named among the models of their engine."""
    for index, engine in enumerate(config.engines):
        for place, name in enumerate(engine.adapters):
            if name in engine.models:
                yield ("engines", index, "adapters", place), f"is among the engine's `models` too: {name}"


def _no_lane(names: str, lanes: Iterable[str]) -> str:
    return f"names no lane: {names} (there are {', '.join(sorted(lanes))})"


def _exposed(host: str, token_env: str) -> str:
    return f"{host} can be reached from outside: put a token into {_called(token_env, 'token_env')}"


def _place(path: SettingPath, places: Mapping[SettingPath, ValueOrigin]) -> ValueOrigin | None:
    for length in range(len(path), 0, -1):
        if path[:length] in places:
            return places[path[:length]]
    return None

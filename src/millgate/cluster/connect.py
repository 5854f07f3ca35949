"""How Redis is reached: one server, Sentinel, or Cluster, over TCP or TLS, as an ACL user or without.

URLs: `redis://[user[:password]@]host[:port][/database]`, `rediss://` over TLS,
`redis+sentinel://host[:port],host[:port]/service`, `redis+cluster://host[:port],...`, and `rediss+sentinel://`,
`rediss+cluster://`.
"""

import re
from collections.abc import Awaitable, Mapping
from inspect import signature
from ssl import VERIFY_X509_STRICT
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import unquote

from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

USERNAME_ENV: Final = "MILLGATE_REDIS_USERNAME"
PASSWORD_ENV: Final = "MILLGATE_REDIS_PASSWORD"  # noqa: S105 - the name of the variable
_PORTS: Final = {"": 6379, "sentinel": 26379, "cluster": 6379}
_URL: Final = re.compile(
    r"(?P<tls>rediss?)(\+(?P<kind>sentinel|cluster))?://"
    r"((?P<user>[^:@/]*)(:(?P<password>[^@/]*))?@)?(?P<hosts>[^/?#@]+)(/(?P<path>[^/?#]*))?"
)


class RedisAddress(NamedTuple):
    """Where Redis is and as whom it is asked; `service` names the master that Sentinels watch. Its text holds no password."""

    kind: str
    hosts: tuple[tuple[str, int], ...]
    tls: bool = False
    ca_file: str | None = None
    database: int = 0
    service: str = ""
    username: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        scheme = f"{'rediss' if self.tls else 'redis'}{'+' if self.kind else ''}{self.kind}"
        return f"{scheme}://{hosts}/{self.service or self.database}"


class RedisClient(Protocol):
    """What the store needs of any of the three clients."""

    def evalsha(self, sha: str, numkeys: int, *keys_and_args: str | bytes) -> Awaitable[Any]:
        """Run a script that the server has."""

    def eval(self, script: str, numkeys: int, *keys_and_args: str | bytes) -> Awaitable[Any]:
        """Run a script, which the server keeps."""

    async def aclose(self) -> None:
        """End all connections."""


class _Sentinels(Sentinel):
    """Asks another one first each time: one on a host that is gone uses up the whole call, and would use up each."""

    async def discover_master(self, service_name: str) -> Any:
        self.sentinels.append(self.sentinels.pop(0))
        return await super().discover_master(service_name)


class _Cluster(RedisCluster):
    """Asks another node for the slots first each time, as one that hangs uses up the whole call.

    It asks none for all commands that there are: scripts do without, and that would be the node with the first slots each time.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands_parser.initialize = _nothing  # type: ignore[method-assign]

    async def initialize(self, *arguments: Any, **options: Any) -> "_Cluster":
        nodes = self.nodes_manager.startup_nodes
        for first in tuple(nodes)[:1]:
            nodes[first] = nodes.pop(first)
        await super().initialize(*arguments, **options)
        return self


async def _nothing(node: ClusterNode | None = None) -> None:
    """Ask nothing of this node."""


class _ByName:
    """The primary that Sentinels name; its end is that of the connections to the Sentinels, too."""

    def __init__(self, sentinel: Sentinel, client: RedisClient) -> None:
        self._sentinel, self._client = sentinel, client
        self.evalsha, self.eval = client.evalsha, client.eval

    async def aclose(self) -> None:
        for each in (self._client, *self._sentinel.sentinels):
            await each.aclose()


def read_address(url: str, environment: Mapping[str, str], ca_file: str | None = None) -> RedisAddress:
    """Return the address that a URL names; user and password of the environment replace its own. ValueError where it is none."""
    match = _URL.fullmatch(url)
    if match is None:
        raise ValueError(
            "a Redis URL is redis[s][+sentinel|+cluster]://[user[:password]@]host[:port][,...][/...]"
        )
    kind, path = match["kind"] or "", match["path"] or ""
    if kind == "sentinel" and not path:
        raise ValueError("a Sentinel URL names the service: redis+sentinel://host:26379/service")
    if kind == "" and path and not path.isdecimal():
        raise ValueError("a Redis database is a number: redis://host:6379/0; a / in a password is %2F")
    if kind == "" and "," in match["hosts"]:
        raise ValueError("several hosts are those of redis+sentinel:// or redis+cluster://")
    return RedisAddress(
        kind,
        tuple(_host(each, _PORTS[kind]) for each in match["hosts"].split(",")),
        tls=match["tls"] == "rediss",
        ca_file=ca_file,
        database=int(path) if path and not kind else 0,
        service=path if kind == "sentinel" else "",
        username=environment.get(USERNAME_ENV) or unquote(match["user"] or "") or None,
        password=environment.get(PASSWORD_ENV) or unquote(match["password"] or "") or None,
    )


def connect(address: RedisAddress, timeout_s: float) -> RedisClient:
    """Return a client that connects when it is first asked, and never repeats a call by itself: the renewer does."""
    options: dict[str, Any] = {
        "username": address.username,
        "password": address.password,
        "socket_connect_timeout": timeout_s,
        "socket_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
    }
    if address.tls:
        options |= {"ssl": True, "ssl_ca_certs": address.ca_file, "ssl_check_hostname": True}
        if "ssl_exclude_verify_flags" in signature(Redis).parameters:
            # From Python 3.13 on the client refuses authorities made by `openssl req -x509`; no other connection of the
            # gate does.
            options["ssl_exclude_verify_flags"] = [VERIFY_X509_STRICT]
    if address.kind == "cluster":
        nodes = [ClusterNode(host, port) for host, port in address.hosts]
        # One repetition: after MOVED, to the node that has the slot now.
        return _Cluster(startup_nodes=nodes, **{**options, "retry": Retry(NoBackoff(), 1)})
    if address.kind == "sentinel":
        shared = {name: value for name, value in options.items() if name not in {"username", "password"}}
        sentinel = _Sentinels(address.hosts, sentinel_kwargs=shared, **options)  # type: ignore[no-untyped-call]
        if address.password:
            # Where none answers without a password: charts give Sentinels the one of Redis.
            sentinel.sentinels += [Redis(host=host, port=port, **options) for host, port in address.hosts]
        return _ByName(sentinel, sentinel.master_for(address.service))
    host, port = address.hosts[0]
    return Redis(host=host, port=port, db=address.database, **options)


def _host(text: str, default_port: int) -> tuple[str, int]:
    match = re.fullmatch(r"(\[(?P<six>[^\]]+)\]|(?P<name>[^:\[\]]+))(:(?P<port>\d{1,5}))?", text)
    if match is None or int(match["port"] or 0) > 65_535:
        raise ValueError("a Redis host is host:6379, or [::1]:6379; a / in a password is %2F")
    return match["six"] or match["name"], int(match["port"] or default_port)

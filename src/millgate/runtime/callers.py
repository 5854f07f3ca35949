"""The tenant and the lane of a request, from its header fields and the peer's address.

What is believed, in this order: a key, whose full SHA-256 is looked up; the word of a peer inside a configured
network; nothing. Keys are opaque: their length is bounded, they are hashed, and only digests are ever compared, so
a key reaches no name, no log and no error path. A missing key costs the same hash as a wrong one, and both get the
same answer.
"""

import hmac
import os
import re
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b, sha256
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple
from zlib import crc32

Named = Mapping[bytes, bytes]
"""A request's header fields by lower-case name, the first of several."""

LONGEST_KEY: Final = 512
"""Bytes; providers' keys have 40 to 200. Longer ones are refused unhashed."""
MOST_OPEN_TENANTS: Final = 10_000
"""Tenants made of credentials that are kept apart at a time; the core keeps state for each."""
FORGET_AFTER_S: Final = 600.0
"""A tenant made of a credential keeps its slot for so long after its last request."""
OTHERS: Final = "others"
"""The one tenant of all credentials beyond that."""

OWN_CREDENTIALS: Final = (b"authorization", b"x-api-key")
"""Where a key of ours is looked for."""
CREDENTIALS: Final = frozenset(
    (*OWN_CREDENTIALS, b"api-key", b"x-goog-api-key", b"cookie", b"openai-organization", b"openai-project")
)
"""Where providers look for one, and for what must belong to it: OpenAI answers 401 to a key with another one's
organization, which SDKs send where OPENAI_ORG_ID is set. A browser sends the session of its company's other sites to a
gate beside them, as a cookie."""
_TENANT, _LANE, _PRIORITY = b"x-millgate-tenant", b"x-millgate-lane", b"x-millgate-priority"
_STEERING: Final = (_TENANT, _LANE, _PRIORITY)
# Agents that name a session for all of its subagents, and in another field which of them asks: Claude Code from 2.1.139
# on, and Codex.
_CLAUDE_CODE: Final = b"x-claude-code-session-id"
_AGENTS: Final = {_CLAUDE_CODE: b"x-claude-code-agent-id", b"session-id": b"thread-id"}
# How the `User-Agent` of coding agents begins: the first three as seen, the others by their sources. Codex's field for its
# session may be any program's.
_AGENT_PROGRAMS: Final = (
    b"claude-cli/",
    b"codex",
    b"opencode/",
    b"Cline/",
    b"RooCode/",
    b"Kilo-Code/",
    b"QwenCode/",
)
_NAME: Final = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}\Z")
_NO_KEY: Final = b"no key at all"


@dataclass(frozen=True, slots=True)
class TenantRule:
    """One tenant: the SHA-256 digests of its keys, the lanes it may choose from, the lane of what names none.

    `expiries` are the seconds since 1970 at which some of the keys end.
    """

    name: str
    digests: tuple[bytes, ...]
    lanes: tuple[str, ...] = ()
    default_lane: str | None = None
    expiries: Mapping[bytes, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CallerSettings:
    """The callers that are admitted; by default all of them, as one tenant, credentials untouched.

    `open_tenants` makes one tenant of each credential that passes. `trusted_peers` are networks whose tenant and lane
    headers are believed, and that may say which engine's cache a request uses. `lanes` are all lanes there are,
    `path_lanes` those of requests that name none. The first of `session_headers` (lower case) that a request has names
    its session.
    """

    tenants: tuple[TenantRule, ...] = ()
    open_tenants: bool = False
    trusted_peers: tuple[str, ...] = ()
    lanes: tuple[str, ...] = ()
    path_lanes: Mapping[bytes, str] | None = None
    session_headers: tuple[bytes, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tenants."""
        return tuple([each.name for each in self.tenants])


class Caller(NamedTuple):
    """The tenant of a request, and the lane that was chosen for the request; None leaves it to the core."""

    tenant: str
    lane: str | None


def is_of_agent(named: Named) -> bool:
    """Say whether these fields are those of a coding agent."""
    return _CLAUDE_CODE in named or named.get(b"user-agent", b"").startswith(_AGENT_PROGRAMS)


def session_of_model(number: int | None, model: str) -> int | None:
    """Return this session's number as one of this model's: an agent asks several, and no engine keeps a context for another model."""
    return None if number is None else number ^ crc32(model.encode(errors="replace"))


class Callers:
    """Finds the tenant of a request; one object for all doors, replaced as a whole by a reload.

    `guarded` says that requests without a good key are refused and that credentials stop here; `separates` that there
    may be several tenants, which must not reach what another has stored. `spoofed` counts tenant, lane and priority
    fields that were not believed. Sessions are numbered with the secret `session_key`, over a reload too. Processes with the
    same `secret` give tenants of credentials the same names.
    """

    spoofed: int

    def __init__(
        self, settings: CallerSettings, before: "Callers | None" = None, secret: bytes = b""
    ) -> None:
        self.settings = settings
        self.guarded = bool(settings.tenants)
        self.spoofed = before.spoofed if before is not None else 0
        self._rules = {digest: (digest, rule) for rule in settings.tenants for digest in rule.digests}
        self._expiries = {digest: end for rule in settings.tenants for digest, end in rule.expiries.items()}
        self._by_name = {rule.name: rule for rule in settings.tenants}
        self._lanes = {lane.encode(): lane for lane in settings.lanes}
        self._path_lanes = settings.path_lanes or {}
        self._trusted = tuple(ip_network(network) for network in settings.trusted_peers)
        # A credential keeps its name over a reload.
        self.open_tenants: OpenTenants = before.open_tenants if before else OpenTenants(secret=secret)
        self.session_key: bytes = before.session_key if before is not None else os.urandom(32)
        self.separates = self.guarded or settings.open_tenants or bool(settings.trusted_peers)
        self._reads_keys = self.guarded or settings.open_tenants
        self._plain = not (self._reads_keys or self._trusted)
        self._by_path = {path: Caller("", lane) for path, lane in self._path_lanes.items()}

    def admits(self, named: Named, fields: Sequence[tuple[bytes, bytes]], peer: str) -> bool:
        """Say whether this caller may ask at all; changes and counts nothing."""
        if not self._reads_keys:
            return True
        key, single = credential(named, fields)
        if not single:
            return False
        if not self.guarded or self._rule(key) is not None:
            return True
        return key is None and self._believes(named, fields, peer) and self._vouched(named) is not None

    def settles(self, named: Named) -> bool:
        """Say whether `identify` answers the same whenever these fields come again, and has nothing to count."""
        steers = _TENANT in named or _LANE in named or _PRIORITY in named
        if steers or self.settings.open_tenants:
            return False
        return not self._expiries or _digest(credential(named, ())[0]) not in self._expiries

    def identify(
        self, named: Named, fields: Sequence[tuple[bytes, bytes]], peer: str, path: bytes, now: float
    ) -> Caller | None:
        """Return the tenant and the lane; None for a caller that `admits` refuses."""
        steers = _TENANT in named or _LANE in named or _PRIORITY in named
        if self._plain:
            if steers:
                self._drop(named, ())
            return self._by_path.get(path, _ANYBODY)
        key, single = credential(named, fields)
        believed = steers and self._believes(named, fields, peer)
        rule = self._recognised(key, named, believed=believed) if self.guarded else None
        if (self._reads_keys and not single) or (self.guarded and rule is None):
            return None
        tenant = rule.name if rule is not None else self._open_tenant(key, named, now, believed=believed)
        return Caller(tenant, self._lane(rule, named, path, believed=believed, steers=steers))

    def tenant(self, named: Named, fields: Sequence[tuple[bytes, bytes]], peer: str, now: float) -> str:
        """Return the tenant that `identify` finds, empty for a caller that it does not let in; counts nothing."""
        if self._plain:
            return ""
        key, single = credential(named, fields)
        believed = _TENANT in named and self._believes(named, fields, peer)
        if not self.guarded:
            return self._open_tenant(key, named, now, believed=believed)
        rule = self._recognised(key, named, believed=believed)
        return rule.name if rule is not None and single else ""

    def _recognised(self, key: bytes | None, named: Named, *, believed: bool) -> TenantRule | None:
        """Return the tenant of this key; without a key the one that a believed field names."""
        rule = self._rule(key)
        return self._vouched(named) if rule is None and key is None and believed else rule

    def _rule(self, key: bytes | None) -> TenantRule | None:
        """Look a key up by its whole digest; the last comparison takes the same time wherever it fails."""
        digest = _digest(key)
        found = self._rules.get(digest)
        if found is None or not hmac.compare_digest(found[0], digest):
            return None
        end = self._expiries.get(digest)
        return found[1] if end is None or time.time() < end else None

    def _vouched(self, named: Named) -> TenantRule | None:
        """Return the tenant that a believed field names instead of a key."""
        name = named.get(_TENANT)
        return None if name is None else self._by_name.get(name.decode("latin-1"))

    def _open_tenant(self, key: bytes | None, named: Named, now: float, *, believed: bool) -> str:
        if believed and _TENANT in named and _NAME.match(named[_TENANT]):
            return named[_TENANT].decode("ascii")
        if key is None or not self.settings.open_tenants:
            return ""
        return self.open_tenants.name_of(key, now)

    def _lane(
        self, rule: TenantRule | None, named: Named, path: bytes, *, believed: bool, steers: bool
    ) -> str | None:
        if steers:
            wanted = self._lanes.get(named.get(_LANE, b""))
            own = rule is not None and wanted is not None and wanted in rule.lanes
            if wanted is not None and (believed or own):
                self._drop(named, _STEERING if believed else (_LANE,))
                return wanted
            self._drop(named, (_TENANT,) if believed else ())
        if rule is not None and rule.default_lane is not None:
            return rule.default_lane
        if rule is not None and rule.lanes:
            by_path = self._path_lanes.get(path)
            return by_path if by_path in rule.lanes else rule.lanes[0]
        return self._path_lanes.get(path)

    def session(self, named: Named, tenant: str) -> int | None:
        """Return the number of the session that these fields name; None where they name none."""
        for name in self.settings.session_headers:
            value = named.get(name)
            if value:
                agent = named.get(_AGENTS.get(name, b""))
                return self.session_number(b"%b %b" % (value, agent) if agent else value, tenant)
        return None

    def session_number(self, name: bytes, tenant: str = "") -> int:
        """Return a number for the session of this name, another for each tenant's and the same at every door.

        A keyed hash: no client can find a name that meets another session's number.
        """
        told = b"%d:%b%b" % (len(tenant), tenant.encode(errors="surrogateescape"), name)
        return int.from_bytes(blake2b(told, digest_size=7, key=self.session_key).digest(), "big")

    def trusts(self, peer: str) -> bool:
        """Say whether this peer lies in a network that the operator trusts."""
        return bool(self._trusted) and is_inside(peer, self._trusted)

    def _believes(self, named: Named, fields: Sequence[tuple[bytes, bytes]], peer: str) -> bool:
        """Say whether this peer's word counts; of two equal fields one may be the client's own, added to by a proxy."""
        if not self.trusts(peer):
            return False
        return not _repeated(_STEERING, named, fields)

    def _drop(self, named: Named, believed: Sequence[bytes]) -> None:
        self.spoofed += sum(1 for name in _STEERING if name in named and name not in believed)


_ANYBODY: Final = Caller("", None)


def _digest(key: bytes | None) -> bytes:
    """Return what a key is looked up by; a missing one, and one that is too long, cost as much as a wrong one."""
    return sha256(_NO_KEY if key is None or len(key) > LONGEST_KEY else key).digest()


class OpenTenants:
    """One name for each credential: a keyed hash, so that the credential cannot be found by trying; bounded."""

    def __init__(self, most: int = MOST_OPEN_TENANTS, secret: bytes = b"") -> None:
        self._most = most
        self._secret = blake2b(secret or os.urandom(32), digest_size=32, person=b"tenants").digest()
        self._seen: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def name_of(self, credential: bytes, now: float) -> str:
        """Return this credential's name; `others` while every slot is taken by a credential used lately."""
        name = "key-" + blake2b(credential, digest_size=12, key=self._secret).hexdigest()
        seen = self._seen
        if name not in seen and len(seen) >= self._most:
            oldest = next(iter(seen))
            if now - seen[oldest] < FORGET_AFTER_S:
                return OTHERS
            del seen[oldest]
        seen[name] = now
        seen.move_to_end(name)
        return name


def credential(named: Named, fields: Sequence[tuple[bytes, bytes]]) -> tuple[bytes | None, bool]:
    """Return the key that a request carries and whether it is the only one; equal ones in both fields count once.

    `Authorization: Bearer KEY` and `x-api-key: KEY` are read, what the OpenAI and the Anthropic SDK send. Another
    scheme than Bearer matches no key.
    """
    bearer, plain = named.get(b"authorization"), named.get(b"x-api-key")
    if bearer is not None:
        # No field can hold a NUL: what came without the scheme matches no key.
        bearer = bearer[7:].strip() if bearer[:7].lower() == b"bearer " else b"\0" + bearer
    if _repeated(OWN_CREDENTIALS, named, fields):
        return None, False
    if bearer is None or plain is None:
        return bearer if plain is None else plain.strip(), True
    return bearer, hmac.compare_digest(bearer, plain.strip())


def _repeated(names: Sequence[bytes], named: Named, fields: Sequence[tuple[bytes, bytes]]) -> bool:
    if len(named) == len(fields):
        return False
    return sum(name in names for name, _value in fields) > sum(name in named for name in names)


@lru_cache(maxsize=1024)  # the proxies in front are few and ask again and again
def is_inside(peer: str, networks: tuple[IPv4Network | IPv6Network, ...]) -> bool:
    """Say whether the peer's address lies in one of the networks; an IPv4 address inside an IPv6 one counts as IPv4."""
    try:
        address = ip_address(peer.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address.version == network.version and address in network for network in networks)

"""What every part of the configuration is, and the kinds of value that settings have: what is read, what is refused, and what an editor may suggest."""

import re
from datetime import UTC, date, datetime, time
from ipaddress import ip_address, ip_network
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
)

from millgate.config import units

_PROXY = re.compile(r"http://(?:[!-~]*@)?(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})/?")
# What can stand in a request line; a name in another alphabet is written in Punycode.
_PLAIN = re.compile(r"[!-~]+")
_ENDPOINTS = ("/chat/completions", "/completions", "/messages", "/responses", "/embeddings")
_NO_MOMENT = "must be a date or a time, as in 2027-01-31 or 2027-01-31T18:00:00Z"


class Section(BaseModel):
    """Frozen data; a key that is not declared is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def check_url(url: str) -> str:
    """Return `url` if it is the plain base address of a server; ValueError says what is wrong and repeats nothing that may be a secret."""
    if "@" in url:
        raise ValueError("carries credentials: they never stand in a configuration")
    parts = urlsplit(url)
    if parts.query or parts.fragment:
        raise ValueError("carries a query or a fragment: give the base address alone")
    if parts.scheme not in {"http", "https"} or not parts.hostname or not _PLAIN.fullmatch(url):
        raise ValueError(f"{url!r} is not an address: write http://host:port")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError(f"{url!r} has no valid port: it must be within 1..65535")
    return url


def check_base(url: str) -> str:
    """Return the base address of an engine; ValueError where it is that of one of its endpoints."""
    base = check_url(url).rstrip("/")
    for path in _ENDPOINTS:
        if base.endswith(path):
            raise ValueError(f"ends in the path of a request: write {base.removesuffix(path)}")
    return url


def is_proxy(url: str) -> bool:
    """Return whether this is `http://[user:password@]host:port`."""
    found = _PROXY.fullmatch(url)
    return found is not None and 0 < int(found[1]) < 65_536


def check_proxy(url: str) -> str:
    """Return the address of a proxy without credentials; ValueError says what is wrong and repeats none of it."""
    if "@" in url:
        raise ValueError("carries credentials: put it into the variable that `proxy_env` names")
    if not is_proxy(url):
        raise ValueError("must be http://host:port, of a proxy that is asked by CONNECT")
    return url


def name_of_url(url: str) -> str:
    """Return the name of an engine that has none of its own: `host:port` of its address, as far as names allow."""
    address = url.partition("://")[2].partition("/")[0].rpartition("@")[2]
    # No name begins with a colon, and [::1] is [0::1].
    return re.sub(r"[^A-Za-z0-9._:-]", "", address.replace("[::", "0::"))[:64].lstrip(".:-") or "engine"


Duration = Annotated[
    float,
    BeforeValidator(units.parse_duration),
    WithJsonSchema(
        {"type": ["string", "number"], "pattern": r"^\d+(\.\d+)?(us|ms|s|m|h)$", "examples": ["30s", "250ms"]}
    ),
]

DurationOrNever = Annotated[
    float | Literal["never"],
    PlainValidator(units.parse_duration_or_never),
    WithJsonSchema({"type": ["string", "number"], "examples": ["2s", "never"]}),
]
Count = Annotated[
    int,
    BeforeValidator(units.parse_count),
    WithJsonSchema(
        {
            "type": ["integer", "string"],
            "pattern": r"^\d+(\.\d+)?(k|K|M|G|Ki|Mi|Gi)?$",
            "examples": [200, "8k"],
        }
    ),
]
Size = Annotated[
    int,
    BeforeValidator(units.parse_size),
    WithJsonSchema(
        {
            "type": ["integer", "string"],
            "pattern": r"^\d+(\.\d+)?(B|kB|KB|MB|GB|KiB|MiB|GiB)?$",
            "examples": ["64KiB"],
        }
    ),
]
Number = Annotated[float, BeforeValidator(units.parse_number)]
Port = Annotated[int, BeforeValidator(units.parse_count), Field(ge=0, le=65535)]


def check_key_hash(value: object) -> str:
    """Return a SHA-256 in lower case; ValueError says nothing of the value, which may be a key itself."""
    if not isinstance(value, str) or not re.fullmatch(r"[0-9A-Fa-f]{64}", value):
        raise ValueError(
            "must be a SHA-256 in 64 hexadecimal digits, as `millgate key new` prints it, never the key itself"
        )
    return value.lower()


def check_moment(value: object) -> datetime:
    """Return a time in UTC; a date is its first moment, and a time without a zone is refused."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(_NO_MOMENT) from None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if not isinstance(value, datetime):
        raise ValueError(_NO_MOMENT)  # noqa: TRY004  # pydantic takes a ValueError for a complaint
    if value.tzinfo is None:
        if value.time() != time():
            raise ValueError("needs a zone: write Z for UTC or an offset")
        value = value.replace(tzinfo=UTC)
    return value.astimezone(UTC)


def check_network(value: str) -> str:
    """Return the network in its shortest form; a single address is a network of one."""
    try:
        return str(ip_network(value))
    except ValueError:
        raise ValueError(f"{value!r} is not a network: write 10.0.0.0/8, 192.0.2.7 or fd00::/8") from None


def is_address(host: str) -> bool:
    """Return whether this host is an address, which no look-up changes."""
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _without_brackets(host: str) -> str:
    return host[1:-1] if host.startswith("[") and is_address(host[1:-1]) else host


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach this listening address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _as_browsers_write_it(origin: str) -> str:
    """Return the origin; ValueError where it names its scheme's own port, which no browser writes (RFC 6454, section 6.1)."""
    for scheme, port in (("https://", ":443"), ("http://", ":80")):
        if origin.startswith(scheme) and origin.endswith(port):
            raise ValueError(
                f"{origin!r} matches no page: browsers leave {port} out, write {origin.removesuffix(port)}"
            )
    return origin


def _word_of(value: object) -> object:
    """Undo YAML 1.1, which reads the words yes and no as booleans."""
    return ("yes" if value else "no") if isinstance(value, bool) else value


YesOrNo = Annotated[Literal["yes", "no"], BeforeValidator(_word_of)]
IgnoredHangups = Annotated[Literal["auto", "yes", "no", "whole"], BeforeValidator(_word_of)]
Url = Annotated[str, AfterValidator(check_url)]
BaseUrl = Annotated[str, AfterValidator(check_base)]
ProxyUrl = Annotated[str, AfterValidator(check_proxy)]
Host = Annotated[str, Field(min_length=1), AfterValidator(_without_brackets)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:\-]{0,63}$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
Origin = Annotated[
    str, Field(pattern=r"^(\*|https?://[a-z0-9.\-\[\]:]{1,253})$"), AfterValidator(_as_browsers_write_it)
]
Moment = Annotated[datetime, BeforeValidator(check_moment)]
KeyHash = Annotated[str, BeforeValidator(check_key_hash)]
Network = Annotated[str, AfterValidator(check_network)]
FilePath = Annotated[str, Field(min_length=1, max_length=4096)]
HeaderName = Annotated[str, AfterValidator(str.lower), Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,63}$")]
RequestPath = Annotated[str, Field(pattern=r"^/[A-Za-z0-9._/-]{1,127}$")]

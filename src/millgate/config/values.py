"""The kinds of value that settings have: what is read, what is refused, and what an editor may suggest."""

import re
from ipaddress import ip_address, ip_network
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from millgate.config import units


def check_url(url: str) -> str:
    """Return `url` if it is the plain base address of a server; ValueError says what is wrong with it."""
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise ValueError("carries credentials: they never stand in a configuration")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"{url!r} is not an address: write http://host:port")
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r} carries a query or a fragment: give the base address alone")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError(f"{url!r} has no valid port: it must be within 1..65535")
    return url


Duration = Annotated[
    float,
    BeforeValidator(units.parse_duration),
    WithJsonSchema(
        {"type": ["string", "number"], "pattern": r"^\d+(\.\d+)?(us|ms|s|m|h)$", "examples": ["30s", "250ms"]}
    ),
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


def check_network(value: str) -> str:
    """Return the network in its shortest form; a single address is a network of one."""
    try:
        return str(ip_network(value))
    except ValueError:
        raise ValueError(f"{value!r} is not a network: write 10.0.0.0/8, 192.0.2.7 or fd00::/8") from None


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach this listening address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _word_of(value: object) -> object:
    """Undo YAML 1.1, which reads the words yes and no as booleans."""
    return ("yes" if value else "no") if isinstance(value, bool) else value


YesNoAuto = Annotated[Literal["auto", "yes", "no"], BeforeValidator(_word_of)]
Url = Annotated[str, AfterValidator(check_url)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:\-]{0,63}$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
KeyHash = Annotated[str, BeforeValidator(check_key_hash)]
Network = Annotated[str, AfterValidator(check_network)]
FilePath = Annotated[str, Field(min_length=1, max_length=4096)]
RequestPath = Annotated[str, Field(pattern=r"^/[A-Za-z0-9._/-]{1,127}$")]

"""The caps and deadlines of the server, with the source of each default."""

from dataclasses import dataclass
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What one client may ask of the server; bytes and seconds.

    `header_bytes` is OpenAI's own bound for clients (64 KiB of headers); `body_bytes` is Anthropic's (32 MB).
    `body_rate` adds a second to `body_s` for every so many bytes that have come, as Apache's MinRate does; a link
    of 128 kbit/s passes.
    `idle_s` is nginx's keepalive_timeout. `kept_pipelined_bytes` is read while a request is being answered;
    beyond it the connection is cut. `write_high_bytes` unsent bytes make a client slow, `write_low_bytes` make it
    quick again; `unsent_bytes` is TCP_NOTSENT_LOWAT. `connections` None means as many as there are
    descriptors for. `takes_nameless` lets requests in HTTP/1.0 come without Host, as the probes of load balancers do.
    """

    header_bytes: int = 64 * KIB
    field_bytes: int = 16 * KIB
    fields: int = 100
    target_bytes: int = 8 * KIB
    body_bytes: int = 32 * MIB
    head_s: float = 10.0
    body_s: float = 30.0
    body_rate: int = 16 * KIB
    idle_s: float = 75.0
    write_stall_s: float = 30.0
    linger_s: float = 1.0
    linger_bytes: int = 64 * KIB
    kept_pipelined_bytes: int = 64 * KIB
    write_high_bytes: int = 16 * KIB
    write_low_bytes: int = 4 * KIB
    unsent_bytes: int = 16 * KIB
    connections: int | None = None
    backlog: int = 1024
    takes_nameless: bool = False

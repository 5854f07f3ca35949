"""Header fields on their way through: what goes on, what stays, and what the gate reads of them."""

from collections.abc import Sequence
from typing import Final

from millgate.dialects.contract import Family
from millgate.http1.client import AnswerHead
from millgate.http1.client.contract import ID_NAMES, upstream_id
from millgate.http1.wire.fields import ANSWER_RESERVED, HOP_BY_HOP, Lines, header_lines, listed
from millgate.runtime.callers import CREDENTIALS

Pairs = list[tuple[bytes, bytes]]

_FRAMING: Final = HOP_BY_HOP | {b"host", b"content-length", b"expect"}
STEERING: Final = frozenset(
    b"x-forwarded-host x-gateway-destination-endpoint forwarded x-original-url x-rewrite-url".split()
)
"""Fields that steer other gateways; from a client they could only be an attempt to steer this one's engines."""
ENGINE_STEERING: Final = frozenset(
    b"""x-data-parallel-rank x-prefiller-host-port x-prefiller-url x-encoder-hosts-ports x-data-parallel-host-port
    x-kv-cache-source-host-port""".split()
)
"""Fields by which vLLM and llm-d's sidecar choose a rank, or an address to take a prompt's cache from; only a trusted peer's go on."""
# The relay must be able to read what it passes on, and takes no 304 and no part for an answer.
_VARYING: Final = frozenset(
    b"accept-encoding if-match if-modified-since if-none-match if-range if-unmodified-since range".split()
)
_STAYS: Final = _FRAMING | STEERING | _VARYING | ID_NAMES

EVENT_STREAM: Final = b"text/event-stream"
EVENTS: Final = (
    (b"content-type", EVENT_STREAM + b"; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)
"""The head of a stream that is made here."""
NO_RETRY: Final = (b"x-should-retry", b"false")
"""What tells SDKs that a retry is of no use."""
_UPSTREAM_ID: Final = b"x-upstream-request-id"
_OWN_PREFIX: Final = b"x-millgate-"
_QUOTAS: Final = (b"x-ratelimit-", b"anthropic-ratelimit-")
_ANTHROPICS: Final = b"sk-ant-api"
"""How a key begins that Anthropic takes as `x-api-key`: beside it a bearer is a token, which a key is not."""
_MOST_KNOWN_NAMES: Final = 1024
_LONGEST_KNOWN_NAME: Final = 64

# The answer's own framing, ids, retry advice, and which pages may read it are ours to write. And browsers believe the last line of
# the host that they asked: where to reach it and how, and whom to tell of its failures. No client goes on to an engine's own address.
_NOT_BACK: Final = frozenset((*_FRAMING, *ID_NAMES, _UPSTREAM_ID)) | set(
    b"""date retry-after retry-after-ms x-should-retry x-accel-buffering access-control-allow-credentials
    access-control-allow-headers access-control-allow-methods access-control-allow-origin access-control-expose-headers
    access-control-max-age alt-svc location content-location refresh nel report-to reporting-endpoints strict-transport-security""".split()
)


def _read_as(name: bytes) -> bytes:
    """Return the name that servers behind WSGI or CGI take this one for: `Content_Length` is Content-Length to them."""
    return name.replace(b"_", b"-")


class _Passes(dict[bytes, bool]):
    """Whether a field of this name goes on, or is one of those that stay; answers are remembered, because names repeat."""

    def __init__(self, stays: frozenset[bytes]) -> None:
        super().__init__()
        self._stays = stays

    def __missing__(self, name: bytes) -> bool:
        read_as = _read_as(name)
        passes = read_as not in self._stays and not read_as.startswith(_OWN_PREFIX)
        if len(name) <= _LONGEST_KNOWN_NAME:
            if len(self) >= _MOST_KNOWN_NAMES:
                self.clear()
            self[name] = passes
        return passes


_passes: Final = _Passes(_STAYS | ENGINE_STEERING)
_passes_of_trusted: Final = _Passes(_STAYS)
_ACCOUNTS: Final = frozenset(
    (b"anthropic-organization-id", b"openai-organization", b"openai-project", b"set-cookie")
)
"""By which a provider says whose key was used: where it was the gate's, that is no client's to know."""
_passes_back: Final = _Passes(_NOT_BACK)
_passes_back_of_own_key: Final = _Passes(_NOT_BACK | _ACCOUNTS)


def for_engine(headers: Sequence[tuple[bytes, bytes]], *, trusted: bool = False) -> Pairs:
    """Return the fields for the engine, without an id and without what any Connection field names."""
    passes = _passes_of_trusted if trusted else _passes
    onward = [pair for pair in headers if passes[pair[0]]]
    dropped = {named for name, value in headers if name == b"connection" for named in listed(value)}
    return [pair for pair in onward if pair[0] not in dropped] if dropped else onward


def with_id(lines: Lines, request_id: bytes) -> Lines:
    """Return the lines for an engine with a request id that is ours or has passed `is_harmless_id`."""
    return Lines(b"%bx-request-id: %b\r\n" % (lines, request_id))


def without_credentials(fields: Pairs) -> Pairs:
    """Return the fields without any that a credential may stand in, or what belongs to one."""
    return [pair for pair in fields if _read_as(pair[0]) not in CREDENTIALS]


def with_credential(fields: Pairs, credential: bytes | None, family: Family = "openai") -> Pairs:
    """Return the fields with the engine's own credential instead of any of the client's; as they are without one.

    It goes where engines look, and for requests in Anthropic's dialect, or from its SDK, which always sends `anthropic-version`,
    where Anthropic looks too.
    """
    if credential is None:
        return fields
    own = without_credentials(fields)
    if family != "anthropic" or not credential.startswith(_ANTHROPICS):
        own.append((b"authorization", b"Bearer " + credential))
    if family == "anthropic" or any(name == b"anthropic-version" for name, _value in fields):
        own.append((b"x-api-key", credential))
    return own


def retry_count(label: bytes | None, envoy_attempts: bytes | None = None) -> int | None:
    """Read the SDK's retry label, or Envoy's count of its own attempts where that says more; None where neither makes sense.

    Envoy's first attempt may be any of its client's.
    """
    if envoy_attempts is not None and (attempts := retry_count(envoy_attempts) or 1) > 1:
        return max(attempts - 1, retry_count(label) or 0)
    if label == b"0":
        return 0
    return int(label) if label is not None and label.isdigit() and len(label) <= 4 else None


def for_client(headers: Sequence[tuple[bytes, bytes]], *, own_key: bool) -> Pairs:
    """Return an engine's fields for the client, its own request id under a name beside ours; `own_key`: it was asked with the gate's key."""
    passes = _passes_back_of_own_key if own_key else _passes_back
    pairs = [pair for pair in headers if passes[pair[0]]]
    given = upstream_id(headers)
    if given is not None:
        pairs.append((_UPSTREAM_ID, given))
    return pairs


def may_tell_quotas(lines: Lines) -> bool:
    """Return whether there may be a provider's quotas among these lines; false is sure."""
    return lines.find(b"ratelimit-") >= 0


def beside_quotas(
    headers: Sequence[tuple[bytes, bytes]], own: Sequence[tuple[bytes, bytes]], *, own_key: bool
) -> Pairs:
    """Return an engine's fields for the client beside our `own`: where these tell quotas, none of its account.

    Two fields of one name reach a client as one value that is neither.
    """
    pairs = for_client(headers, own_key=own_key)
    if any(name.startswith(_QUOTAS) for name, _value in own):
        return [pair for pair in pairs if not pair[0].startswith(_QUOTAS)]
    return pairs


def lines_for_client(head: AnswerHead, request_id: bytes, *, own_key: bool) -> Lines:
    """Return an engine's fields for the client as lines, with our ids; a head that repeats is written once."""
    notes = head.notes
    lines: Lines | None = notes.kept if notes is not None else None
    if lines is None:
        lines = header_lines(for_client(head.headers, own_key=own_key), ANSWER_RESERVED)
        if notes is not None:
            notes.kept = lines
    return with_ids(lines, request_id)


def with_ids(lines: Lines, request_id: bytes) -> Lines:
    """Return the lines for a client with a request id, under both names, that is ours or has passed `is_harmless_id`."""
    return Lines(b"%bx-request-id: %b\r\nrequest-id: %b\r\n" % (lines, request_id, request_id))


def media_type(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the content type in lower case: media types know no letter case (RFC 9110 section 8.3.1)."""
    return first(headers, b"content-type").lower()


def first(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> bytes:
    """Return the first value of this lower-case name, empty when there is none."""
    for key, value in headers:
        if key == name:
            return value
    return b""

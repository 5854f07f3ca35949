"""What Envoy's access log says of a request: how it ended, and what is known of its answer.

One entry comes about a millisecond after the end, and with `access_log_flush_interval` others while it runs. The request
is known by the metadata that we gave it, which no client can write. The flags: envoy.data.accesslog.v3.ResponseFlags.
"""

from typing import Final, NamedTuple

from envoy.data.accesslog.v3.accesslog_pb2 import (
    AccessLogCommon,
    AccessLogType,
    HTTPAccessLogEntry,
    ResponseFlags,
)
from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import Struct

from millgate.core.words import FailureKind
from millgate.dialects.contract import MOST_TOKENS, Usage
from millgate.http1.client import AnswerHead
from millgate.runtime.verdicts import SAID_NOTHING, Said, verdict
from millgate.servers.extproc import messages
from millgate.servers.extproc.settings import (
    CACHED_TOKENS,
    FIRST_BODY_MS,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    USAGE,
)

_PERIODIC: Final = AccessLogType.DownstreamPeriodic
_COUNTS: Final = (PROMPT_TOKENS, OUTPUT_TOKENS, CACHED_TOKENS)
_STARTS: Final = (AccessLogType.DownstreamStart, AccessLogType.UpstreamPoolReady)

_FAILURES: Final = (
    ("upstream_connection_failure", FailureKind.CONNECT),
    ("no_healthy_upstream", FailureKind.CONNECT),
    ("upstream_overflow", FailureKind.CONNECT),
    ("no_route_found", FailureKind.CONNECT),
    ("upstream_request_timeout", FailureKind.TIMEOUT),
    ("stream_idle_timeout", FailureKind.TIMEOUT),
    ("duration_timeout", FailureKind.TIMEOUT),
    ("upstream_max_stream_duration_reached", FailureKind.TIMEOUT),
    ("upstream_protocol_error", FailureKind.PROTOCOL),
    ("upstream_connection_termination", FailureKind.BROKEN),
    ("upstream_remote_reset", FailureKind.BROKEN),
    ("local_reset", FailureKind.BROKEN),
)
"""Flags that say of an answer that it is not whole, the surest first."""


class LoggedRequest(NamedTuple):
    """One entry: of which attempt, whether it goes on, and what is known so far.

    `first_body_s` is when the first bytes of the answer's body came, from the last ones of the request on by Envoy's
    clock; None before them, or where Envoy does not tell. `left` says that the client went, `failure` why there is no
    whole answer, `body_bytes` how much of it has come.
    """

    attempt: str
    goes_on: bool
    first_body_s: float | None = None
    left: bool = False
    failure: tuple[FailureKind, Said] | None = None
    usage: Usage = Usage(None, None)
    body_bytes: int = 0


def read_entry(entry: HTTPAccessLogEntry) -> LoggedRequest | None:
    """Read an entry; None for one of a request that is not ours."""
    common = entry.common_properties
    attempt = messages.attempt_of(common.metadata)
    if not attempt:
        return None
    goes_on = common.access_log_type == _PERIODIC or common.access_log_type in _STARTS
    read = common.metadata.filter_metadata.get(USAGE)
    first_body_s, body_bytes = _first_body_s(common, read), entry.response.response_body_bytes
    if goes_on:
        return LoggedRequest(attempt, goes_on=True, first_body_s=first_body_s, body_bytes=body_bytes)
    left = _client_left(entry)
    return LoggedRequest(
        attempt,
        goes_on=False,
        first_body_s=first_body_s,
        left=left,
        failure=None if left else _failure(entry),
        usage=_usage(read),
        body_bytes=body_bytes,
    )


def _first_body_s(common: AccessLogCommon, read: Struct | None) -> float | None:
    """Return when the body began, from the end of the request on.

    Not `time_to_first_upstream_rx_byte`: engines send the head of a stream before they have read the prompt. An entry of a
    running request has no duration, and says nowhere when it was written.
    """
    if read is None or FIRST_BODY_MS not in read.fields:
        return None
    started = common.start_time
    asked_s: float = started.seconds + started.nanos * 1e-9 + _seconds(common.time_to_last_rx_byte)
    began_s: float = read.fields[FIRST_BODY_MS].number_value / 1000.0
    return max(0.0, began_s - asked_s)


def _client_left(entry: HTTPAccessLogEntry) -> bool:
    flags, response = entry.common_properties.response_flags, entry.response
    if flags.downstream_connection_termination or flags.downstream_remote_reset:
        return True
    return not response.response_code.value or response.response_code_details.startswith("downstream_")


def _failure(entry: HTTPAccessLogEntry) -> tuple[FailureKind, Said] | None:
    common, response = entry.common_properties, entry.response
    if common.HasField("response_flags") and (kind := _flagged(common.response_flags)) is not None:
        return kind, SAID_NOTHING
    status = response.response_code.value
    if status < 300:
        return None
    fields = [(name.encode(), value.encode()) for name, value in response.response_headers.items()]
    return verdict(AnswerHead(status, fields, None), b"")


def _flagged(flags: ResponseFlags) -> FailureKind | None:
    return next((kind for name, kind in _FAILURES if getattr(flags, name)), None)


def _usage(read: Struct | None) -> Usage:
    if read is None:
        return Usage(None, None)
    prompt, output, cached = (
        _count(read.fields[name].number_value) if name in read.fields else None for name in _COUNTS
    )
    return Usage(prompt, output, cached)


def _count(number: float) -> int | None:
    return int(number) if 0 <= number <= MOST_TOKENS else None


def _seconds(duration: Duration) -> float:
    seconds: float = duration.seconds + duration.nanos * 1e-9
    return seconds

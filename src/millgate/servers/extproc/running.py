"""Requests that run at an engine, by way of Envoy: each until the access log tells its end, or its lease is over.

An entry can be lost: Envoy died, or this processor was away. So a slot has a lease: while entries of its request come
(Envoy writes one at each `access_log_flush_interval`) it is renewed; three that are missing end it. The log's name says how often
they come. Where neither that nor an entry has, the request may be silent for `lease_s` past the time of its first event.

One entry comes about a millisecond after the end, and with `access_log_flush_interval` others while it runs. The request
is known by the metadata that we gave it, which no client can write. The flags: envoy.data.accesslog.v3.ResponseFlags.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from envoy.data.accesslog.v3.accesslog_pb2 import (
    AccessLogCommon,
    AccessLogType,
    HTTPAccessLogEntry,
    HTTPResponseProperties,
    ResponseFlags,
)
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from millgate.core.words import FailureKind
from millgate.dialects.contract import MOST_TOKENS, Dialect, EngineError, Usage
from millgate.dialects.token_counts import total
from millgate.http1.client import AnswerHead
from millgate.runtime.verdicts import SAID_NOTHING, Said, verdict
from millgate.servers.extproc import messages
from millgate.servers.extproc.settings import (
    CACHE_READ,
    CACHE_WRITTEN,
    CACHED_TOKENS,
    ERROR,
    FIRST_BODY_MS,
    KEY_REFUSED,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    USAGE,
)

_PERIODIC: Final = AccessLogType.DownstreamPeriodic
_STARTS: Final = (AccessLogType.DownstreamStart, AccessLogType.UpstreamPoolReady)


class FailedAnswer(NamedTuple):
    """Why there is no whole answer: `status` is the engine's own, 0 where none came, None where no engine is to blame."""

    kind: FailureKind
    said: Said = SAID_NOTHING
    status: int | None = 0


_UNSENT: Final = FailedAnswer(FailureKind.CONNECT, status=None)
_FAILURES: Final = (
    ("upstream_connection_failure", FailedAnswer(FailureKind.CONNECT)),
    ("no_healthy_upstream", _UNSENT),
    ("upstream_overflow", _UNSENT),
    ("no_route_found", _UNSENT),
    ("upstream_request_timeout", FailedAnswer(FailureKind.TIMEOUT)),
    ("stream_idle_timeout", FailedAnswer(FailureKind.TIMEOUT)),
    ("duration_timeout", FailedAnswer(FailureKind.TIMEOUT)),
    ("upstream_max_stream_duration_reached", FailedAnswer(FailureKind.TIMEOUT)),
    ("upstream_protocol_error", FailedAnswer(FailureKind.PROTOCOL)),
    ("upstream_connection_termination", FailedAnswer(FailureKind.BROKEN)),
    ("upstream_remote_reset", FailedAnswer(FailureKind.BROKEN)),
    ("local_reset", FailedAnswer(FailureKind.BROKEN)),
)
"""Flags that say of an answer that it is not whole, the surest first."""


class LoggedRequest(NamedTuple):
    """One entry: of which attempt, whether it goes on, and what is known so far.

    `first_body_s` is when the first bytes of the answer's body came, from the last ones of the request on by Envoy's
    clock; None before them, or where Envoy does not tell. `left` says that the client went, `failure` why there is no
    whole answer, `body_bytes` how much of it has come. `error` is the error in its stream, empty for none.
    """

    attempt: str
    goes_on: bool
    first_body_s: float | None = None
    left: bool = False
    failure: FailedAnswer | None = None
    usage: Usage = Usage(None, None)
    body_bytes: int = 0
    error: str = ""


def read_entry(entry: HTTPAccessLogEntry) -> LoggedRequest | None:
    """Read an entry; None for one of a request that is not ours."""
    common, response = entry.common_properties, entry.response
    named = common.metadata.filter_metadata
    attempt = messages.attempt_of(named)
    if not attempt:
        return None
    kind, read = common.access_log_type, named.get(USAGE)
    numbers = {} if read is None else {name: each.number_value for name, each in read.fields.items()}
    first_body_s, body_bytes = _first_body_s(common, numbers), response.response_body_bytes
    if kind == _PERIODIC or kind in _STARTS:
        return LoggedRequest(attempt, True, first_body_s, usage=_usage(numbers), body_bytes=body_bytes)
    flags = common.response_flags if common.HasField("response_flags") else None
    left = _client_left(response, flags)
    status = int(numbers.get(KEY_REFUSED, response.response_code.value))
    failure = None if left else _failure(response, flags, status)
    error = "" if read is None or ERROR not in read.fields else str(read.fields[ERROR].string_value)
    return LoggedRequest(attempt, False, first_body_s, left, failure, _usage(numbers), body_bytes, error)


def read_error(said: str, dialect: Dialect) -> EngineError | None:
    """Read an error that stood in a stream: an object as text, or words alone; None for what is no error in this dialect."""
    error = said if said.startswith("{") else json.dumps(said)
    return dialect.read_event(f'data: {{"type":"error","error":{error}}}'.encode()).error if said else None


def _first_body_s(common: AccessLogCommon, read: dict[str, float]) -> float | None:
    """Return when the body began, from the end of the request on.

    Not `time_to_first_upstream_rx_byte`: engines send the head of a stream before they have read the prompt. An entry of a
    running request has no duration, and says nowhere when it was written.
    """
    began_ms = read.get(FIRST_BODY_MS)
    if began_ms is None:
        return None
    return max(0.0, began_ms / 1000.0 - _seconds(common.start_time) - _seconds(common.time_to_last_rx_byte))


def _client_left(response: HTTPResponseProperties, flags: ResponseFlags | None) -> bool:
    if flags is not None and (flags.downstream_connection_termination or flags.downstream_remote_reset):
        return True
    return not response.response_code.value or response.response_code_details.startswith("downstream_")


def _failure(
    response: HTTPResponseProperties, flags: ResponseFlags | None, status: int
) -> FailedAnswer | None:
    for name, failure in _FAILURES if flags is not None else ():
        if getattr(flags, name):
            return failure
    if status < 300:
        return None
    fields = [(name.encode(), value.encode()) for name, value in response.response_headers.items()]
    kind, said = verdict(AnswerHead(status, fields, None), b"")
    is_engines = response.response_code_details == "via_upstream"  # any other is Envoy's own
    return FailedAnswer(kind, said, status if is_engines else None)


def _usage(read: dict[str, float]) -> Usage:
    prompt, output, cached, beside, written = [
        _count(read.get(name))
        for name in (PROMPT_TOKENS, OUTPUT_TOKENS, CACHED_TOKENS, CACHE_READ, CACHE_WRITTEN)
    ]
    return Usage(total(prompt, beside, written), output, beside if cached is None else cached)


def _count(number: float | None) -> int | None:
    return int(number) if number is not None and 0 <= number <= MOST_TOKENS else None


def _seconds(time: Duration | Timestamp) -> float:
    seconds: float = time.seconds + time.nanos * 1e-9
    return seconds


_SWEEP_S: Final = 0.5
_MISSED: Final = 3.0
_SLACK_S: Final = 1.0
_STOPPED_S: Final = 1.5
"""A sweep that is so late says that this process stood still: entries that came meanwhile have not been read."""
_MEMORY: Final = 0.05
_FADING: Final = 0.001
_TELLING_TOKENS: Final = 64
"""With fewer, the events that open and close a stream would count for more than a twentieth."""


class RunningRequest(Protocol):
    """What runs."""

    def logged(self, entry: LoggedRequest) -> None:
        """Take an entry about it."""

    def lost(self) -> None:
        """No entry will come: what became of it is not known."""


class AnswerSizes:
    """How many bytes of an answer make a token, by its kind, for answers that do not say their tokens.

    Answers with usage teach it. Until one has, it is the most that any answer had for each token that it might have: those that
    were cut at their `max_tokens` had just so many. Answers that might have few tokens are left out, as most of their
    bytes are no tokens.
    """

    def __init__(self) -> None:
        self._per_token: dict[bool, float] = {}
        self._at_least: dict[bool, float] = {}

    def complete(self, usage: Usage, body_bytes: int, most_tokens: int | None, *, streamed: bool) -> Usage:
        """Return the usage, its output by the bytes of the body where it says none; learn where it does."""
        if usage.output_tokens is None:
            each = self._per_token.get(streamed) or self._guess(body_bytes, most_tokens, streamed=streamed)
            return usage._replace(output_tokens=round(body_bytes / each)) if each else usage
        if usage.output_tokens > 0 and body_bytes > 0:
            each = body_bytes / usage.output_tokens
            mean = self._per_token.get(streamed, each)
            self._per_token[streamed] = mean + _MEMORY * (each - mean)
        return usage

    def tokens(self, body_bytes: int, *, streamed: bool) -> int:
        """Return about how many tokens so many bytes of a body are, 0 where none has been learned of."""
        each = self._per_token.get(streamed) or self._at_least.get(streamed)
        return round(body_bytes / each) if each else 0

    def _guess(self, body_bytes: int, most_tokens: int | None, *, streamed: bool) -> float:
        known = self._at_least.get(streamed, 0.0)
        if most_tokens is not None and most_tokens >= _TELLING_TOKENS:
            known = self._at_least[streamed] = max(known * (1.0 - _FADING), body_bytes / most_tokens)
        return known


class _Lease:
    """Until when a request may be silent, and when it was last heard of."""

    def __init__(self, request: RunningRequest, ends_at: float) -> None:
        self.request = request
        self.ends_at = ends_at
        self.heard_at: float | None = None


class RunningRequests:
    """All that run, by the name that Envoy gives back; `now` is the loop's time."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._swept_at = now()
        self._leases: dict[str, _Lease] = {}
        self._interval_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.lost = 0
        """Slots that ended by their lease."""
        self.unknown = 0
        """Entries of attempts that do not run here: of another processor, or from before a restart."""
        self.sizes = AnswerSizes()

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, name: str, request: RunningRequest, ends_at: float) -> None:
        """Wait for the end of this request, no longer than `ends_at` if nothing is heard of it."""
        self._leases[name] = lease = _Lease(request, ends_at)
        if self._interval_s is not None:
            lease.ends_at = min(ends_at, self.now() + self._silence_s(self._interval_s))

    def drop(self, name: str) -> None:
        """Wait no more: its end is known."""
        self._leases.pop(name, None)

    def heard(self, entry: LoggedRequest) -> None:
        """Take an entry of the log."""
        lease = self._leases.get(entry.attempt)
        if lease is None:
            self.unknown += 1
            return
        if entry.goes_on:
            self._renew(lease)
        else:
            del self._leases[entry.attempt]
        lease.request.logged(entry)

    def _renew(self, lease: _Lease) -> None:
        """Learn how often entries come, as the longest gap that was seen, and expect the next by then."""
        now = self.now()
        if lease.heard_at is not None and now - self._swept_at < _STOPPED_S:
            self.expect(now - lease.heard_at)
        lease.heard_at = now
        if self._interval_s is not None:
            lease.ends_at = now + self._silence_s(self._interval_s)

    def expect(self, interval_s: float) -> None:
        """Know that entries come so often, as the log's name says or as was seen; what runs may be silent no longer from now on."""
        if self._interval_s is None:
            latest = self.now() + self._silence_s(interval_s)
            for each in self._leases.values():
                each.ends_at = min(each.ends_at, latest)
        self._interval_s = max(self._interval_s or 0.0, interval_s)

    @staticmethod
    def _silence_s(interval_s: float) -> float:
        return _MISSED * interval_s + _SLACK_S

    def start(self) -> None:
        """Begin to look for leases that are over."""
        self._timer = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self) -> None:
        self.start()
        now = self.now()
        silent_s, self._swept_at = now - self._swept_at, now
        if silent_s >= _STOPPED_S:
            # Every request has the time in which nothing was read; what is lost of it tells nothing of the interval.
            for lease in self._leases.values():
                lease.ends_at += silent_s
                lease.heard_at = None
        over = [(name, lease) for name, lease in self._leases.items() if lease.ends_at <= now]
        for name, lease in over:
            del self._leases[name]
            self.lost += 1
            lease.request.lost()

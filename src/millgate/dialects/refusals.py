"""How to say no: the one table from reasons to what each dialect's clients expect, and its fast writer.

The statuses are what the SDKs react to (design section 2): 503 and 429 are retried by the OpenAI SDK after
`retry-after-ms`, 529 by Anthropic's; `x-should-retry: false` stops both.
"""

import json
from collections.abc import Mapping
from math import ceil
from typing import Final, NamedTuple

from millgate.core.words import FailureKind, Reason

Headers = list[tuple[bytes, bytes]]

LEAST_HINT_S: Final = 0.1
MOST_HINT_S: Final = 60.0
"""The OpenAI SDK ignores a Retry-After above 120 s; Portkey gives up beyond 60 s in all."""


class RefusalAnswer(NamedTuple):
    """A whole refusal, ready for the wire; `close` ends the connection after it."""

    status: int
    headers: Headers
    body: bytes
    close: bool


class DialectError(NamedTuple):
    """What one dialect says: status, error type, error code (Anthropic has none)."""

    status: int
    kind: str
    code: str | None = None


class RefusalRow(NamedTuple):
    """One reason in every dialect, and its sentence for people."""

    message: str
    openai: DialectError
    anthropic: DialectError
    close: bool = False


_OVERLOADED = DialectError(503, "service_unavailable_error", "server_is_overloaded")
_OVERLOADED_ANTHROPIC = DialectError(529, "overloaded_error")
_LIMITED = DialectError(429, "rate_limit_error", "rate_limit_exceeded")
_LIMITED_ANTHROPIC = DialectError(429, "rate_limit_error")


def _overloaded(message: str, *, close: bool = False) -> RefusalRow:
    return RefusalRow(message, _OVERLOADED, _OVERLOADED_ANTHROPIC, close)


REASONS: Mapping[Reason, RefusalRow] = {
    Reason.SATURATED: _overloaded("no engine has room, and the request may not wait so long"),
    Reason.QUEUE_FULL: _overloaded("the queue is full"),
    Reason.DISPLACED: _overloaded("more urgent work took the place in the queue"),
    Reason.TOO_LATE: _overloaded("the first token would come after the deadline"),
    Reason.EXPIRED: _overloaded("the deadline passed in the queue"),
    Reason.QUOTA: RefusalRow("the rate limit is used up", _LIMITED, _LIMITED_ANTHROPIC),
    Reason.TENANT_LIMIT: RefusalRow(
        "too many requests are running for this caller", _LIMITED, _LIMITED_ANTHROPIC
    ),
    Reason.RETRY_BUDGET: RefusalRow(
        "too large a share of the requests are retries",
        DialectError(429, "rate_limit_error", "slow_down"),
        _LIMITED_ANTHROPIC,
    ),
    Reason.NO_ENGINE: RefusalRow(
        "no engine can take this request",
        DialectError(503, "service_unavailable_error", "no_healthy_upstream"),
        DialectError(503, "api_error"),
    ),
    Reason.NO_LEASE: _overloaded("this replica has no lease of the cluster's limits", close=True),
    Reason.DRAINING: _overloaded("the gateway is shutting down", close=True),
    Reason.TOO_LARGE: RefusalRow(
        "the request can never fit the limits that it falls under",
        DialectError(413, "invalid_request_error", "request_too_large"),
        DialectError(413, "request_too_large"),
    ),
    Reason.OVERLOADED_GATE: _overloaded("the gateway itself is too busy to take requests"),
}


class Failure(NamedTuple):
    """One kind of engine failure in words; `retry_after_s` where coming back later may help."""

    message: str
    openai: DialectError
    anthropic: DialectError
    retry_after_s: float | None = None
    retry: bool = True


def _failure(status: int, code: str, message: str, *, retry: bool = True) -> Failure:
    anthropic = DialectError(504, "timeout_error") if status == 504 else DialectError(status, "api_error")
    return Failure(message, DialectError(status, "server_error", code), anthropic, retry=retry)


FAILURES: Mapping[FailureKind, Failure] = {
    FailureKind.CONNECT: _failure(502, "upstream_unreachable", "the engine cannot be reached"),
    FailureKind.REFUSED: Failure("the engine refused the request", _OVERLOADED, _OVERLOADED_ANTHROPIC, 1.0),
    # Its deadline has passed: an automatic retry would only repeat work for a user that has left.
    FailureKind.TIMEOUT: _failure(504, "upstream_timeout", "the engine did not answer in time", retry=False),
    FailureKind.BROKEN: _failure(502, "upstream_broken", "the engine's answer broke off"),
    FailureKind.PROTOCOL: _failure(
        502, "upstream_protocol_error", "the engine's answer is not what was asked for"
    ),
    FailureKind.STATUS: _failure(502, "upstream_error", "the engine failed"),
    FailureKind.ERROR_EVENT: _failure(502, "upstream_error", "the engine failed"),
    FailureKind.ABORT: _failure(502, "upstream_aborted", "the engine gave up on the request"),
    FailureKind.NO_CREDIT: _failure(
        502, "upstream_no_credit", "the provider's account has no credit left", retry=False
    ),
}


class _Prepared(NamedTuple):
    """A reason with everything done that can be done before a request comes."""

    status: int
    later: bytes
    never: bytes
    close: bool
    later_lines: bytes
    never_lines: bytes


_JSON = (b"content-type", b"application/json")
_DO_NOT_RETRY = (b"x-should-retry", b"false")
_LATER, _NEVER = "; come back in %.1f s", "; coming back is of no use"
_LATE = "; an automatic retry would be too late as well"  # people who ask anew have a deadline of their own


def _lines(ours: bytes, more: bytes) -> bytes:
    """Return a refusal's header lines, `ours` being its request's id; a form that stands in the code is compiled with it."""
    return b"content-type: application/json\r\nx-request-id: %b\r\nrequest-id: %b\r\n%b" % (ours, ours, more)


class Refuser:
    """Writes the refusals of one dialect ("openai" or "anthropic") in about 2 us each (INV-8)."""

    def __init__(self, dialect: str = "openai") -> None:
        self._anthropic = dialect == "anthropic"
        self._prepared = {reason: self._prepare(reason, row) for reason, row in REASONS.items()}
        # Behind Envoy such words go with each request whose answer may have to be replaced by them.
        self._failed = {kind: self._body(self._words(row), row.message) for kind, row in FAILURES.items()}

    def _prepare(self, reason: Reason, row: RefusalRow) -> _Prepared:
        words = self._words(row)
        ends = _LATE if reason is Reason.TOO_LATE else _NEVER
        later, never = self._body(words, row.message + _LATER), self._body(words, row.message + ends)
        line = b"x-millgate-reason: %b\r\nx-should-retry: " % reason.encode()
        return _Prepared(words.status, later, never, row.close, line + b"true\r\n", line + b"false\r\n")

    def _words(self, row: RefusalRow | Failure) -> DialectError:
        return row.anthropic if self._anthropic else row.openai

    def _body(self, words: DialectError, message: str) -> bytes:
        """Build the JSON text; Anthropic's ends open, for the request id."""
        if self._anthropic:
            error = json.dumps({"type": words.kind, "message": message})
            return f'{{"type":"error","error":{error},"request_id":"'.encode()
        error = json.dumps({"message": message, "type": words.kind, "param": None, "code": words.code})
        return f'{{"error":{error}}}'.encode()

    def _ended(self, body: bytes, request_id: bytes) -> bytes:
        return body + request_id + b'"}' if self._anthropic else body

    def refuse(self, reason: Reason, retry_after_s: float, retry: bool, request_id: bytes) -> RefusalAnswer:
        """Dress one refusal as `refuse_in_lines` does, with the headers in pairs."""
        status, lines, body, close = self.refuse_in_lines(reason, retry_after_s, retry, request_id)
        pairs = [line.partition(b": ") for line in lines.splitlines()]
        return RefusalAnswer(status, [(name, value) for name, _, value in pairs], body, close)

    def refuse_in_lines(
        self, reason: Reason, retry_after_s: float, retry: bool, request_id: bytes, numbers: str = ""
    ) -> tuple[int, bytes, bytes, bool]:
        """Dress one refusal, the way of every yield; `request_id` must be printable ASCII without quotes.

        `numbers` say what was asked for and what there is; of what is of no use for now alone they say until when.
        """
        prepared = self._prepared[reason]
        hint_s = min(MOST_HINT_S, max(LEAST_HINT_S, retry_after_s))
        more, body = prepared.never_lines, prepared.never
        if retry:
            pause = b"retry-after: %d\r\nretry-after-ms: %d\r\n" % (ceil(hint_s), ceil(hint_s * 1000))
            more, body = prepared.later_lines + pause, prepared.later % hint_s
        if numbers:
            row = REASONS[reason]
            tail = _LATER % hint_s if retry else "" if reason is Reason.QUOTA else _NEVER
            body = self._body(self._words(row), f"{row.message}: {numbers}{tail}")
        lines = _lines(request_id, more)
        return prepared.status, lines, self._ended(body, request_id), prepared.close

    def broken_off(self, cause: FailureKind | Reason) -> tuple[DialectError, str]:
        """Return what an event of a stream that has begun calls the cause of its end, an engine's or our own, and its sentence."""
        row = FAILURES[cause] if isinstance(cause, FailureKind) else REASONS[cause]
        return self._words(row), row.message

    def failed(self, kind: FailureKind, request_id: bytes, hint_s: float | None = None) -> RefusalAnswer:
        """Dress an engine's failure, for a client that has not had a byte of its answer; it may come back in `hint_s`, else in the usual time."""
        failure = FAILURES[kind]
        words = self._words(failure)
        headers = [_JSON, (b"x-request-id", request_id), (b"request-id", request_id)]
        if not failure.retry:
            headers.append(_DO_NOT_RETRY)
        elif (pause_s := hint_s or failure.retry_after_s) is not None:
            headers += (
                (b"retry-after", b"%d" % ceil(pause_s)),
                (b"retry-after-ms", b"%d" % ceil(pause_s * 1000)),
            )
        return RefusalAnswer(words.status, headers, self._ended(self._failed[kind], request_id), close=False)

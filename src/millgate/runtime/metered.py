"""Reads what a provider says of its limits: the headers of every answer, which are posted, and the words of a 429."""

import re
from collections.abc import Callable, Sequence
from time import time

from millgate.core.events import QuotaSeen
from millgate.core.words import QuotaKind
from millgate.dialects.quota_headers import read_quota_headers
from millgate.http1.client import AnswerHead, Call, Receiver, Upstream
from millgate.http1.wire.fields import Lines
from millgate.runtime.driver import Driver

# Refusals are some hundred bytes; a page of another kind is not searched to its end.
_MOST_WORDS = 4096
_OVER_LIMIT = 429
# The first that is found counts: Azure speaks of "Requests to ... have exceeded token rate limit", Anthropic of
# "input tokens per minute" and OpenAI of "requests per day (RPD)".
_NAMED = (
    (re.compile(rb"input[ _-]tokens|\bitpm\b"), QuotaKind.ITPM),
    (re.compile(rb"output[ _-]tokens|\botpm\b"), QuotaKind.OTPM),
    (re.compile(rb"requests per day|\brpd\b"), QuotaKind.RPD),
    (re.compile(rb"tokens per day|\btpd\b"), QuotaKind.TPD),
    (re.compile(rb"\btokens?\b|\btpm\b"), QuotaKind.TPM),
    (re.compile(rb"\brequests\b|\brpm\b|call rate limit"), QuotaKind.RPM),
)
# An account without credit answers so, and no retry mends it: OpenAI's words, which compatible providers use as well.
_NO_CREDIT = re.compile(
    rb'"(?:code|type)"\s*:\s*"(?:insufficient_quota|billing_hard_limit_reached|billing_not_active)"'
)


def lacks_credit(status: int, refusal: bytes) -> bool:
    """Return whether this 429 says that the account has no credit left, which is no limit that a pause would restore."""
    return status == _OVER_LIMIT and _NO_CREDIT.search(refusal[:_MOST_WORDS]) is not None


def named_limit(refusal: bytes) -> QuotaKind | None:
    """Return the limit that the body of a 429 names, None where it names none.

    OpenAI says so in `error.type` ("requests", "tokens") and in the message, Anthropic and Azure in the message alone.
    """
    words = refusal[:_MOST_WORDS].lower()
    for pattern, kind in _NAMED:
        if pattern.search(words):
            return kind
    return None


class MeteredUpstream:
    """An upstream whose answers tell how much of an account is left."""

    def __init__(self, upstream: Upstream, engine: str, driver: Driver) -> None:
        self._upstream = upstream
        self._engine = engine
        self._driver = driver

    def request(
        self,
        method: bytes,
        target: bytes,
        headers: Sequence[tuple[bytes, bytes]] | Lines,
        body: bytes,
        receiver: Receiver,
        *,
        head_by: float | None = None,
        may_retry: bool = True,
    ) -> Call:
        """Send one request now; see `Upstream.request`."""
        listening = _Listener(receiver, self._read)
        return self._upstream.request(
            method, target, headers, body, listening, head_by=head_by, may_retry=may_retry
        )

    def _read(self, head: AnswerHead) -> None:
        reading = read_quota_headers(head.headers, time())
        if reading:
            self._driver.post(QuotaSeen(self._engine, reading))

    def close(self) -> None:
        """Close the upstream."""
        self._upstream.close()


class _Listener:
    """Hands everything on, and the head to the meter as well."""

    __slots__ = ("_read", "_receiver", "on_data", "on_end", "on_failed", "on_raised")

    def __init__(self, receiver: Receiver, read: Callable[[AnswerHead], None]) -> None:
        self._receiver = receiver
        self._read = read
        # Chunks pass without a call in between.
        self.on_data = receiver.on_data
        self.on_end = receiver.on_end
        self.on_failed = receiver.on_failed
        self.on_raised = receiver.on_raised

    def on_head(self, head: AnswerHead) -> None:
        """Read the head first: what it says holds for the next attempt already."""
        self._read(head)
        self._receiver.on_head(head)

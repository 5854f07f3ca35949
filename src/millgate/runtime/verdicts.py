"""What an engine's error answer says of whose fault it is, and of when to come back, and any answer of a provider's limits: every door reads it alike."""

import re
import time
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Final, NamedTuple

from millgate.core.events import QuotaSeen
from millgate.core.words import UNREAD, FailureKind, QuotaKind
from millgate.dialects.contract import EngineError
from millgate.dialects.quota_headers import Headers, date_s, read_quota_headers
from millgate.dialects.refusals import LEAST_HINT_S, MOST_HINT_S
from millgate.http1.client import AnswerHead
from millgate.runtime.driver import Driver

# Refusals are some hundred bytes; a page of another kind is not searched to its end.
_MOST_WORDS = 4096
_SAY_CREDIT = (400, 429)
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
# An account without credit answers so, and no retry mends it: OpenAI's words, which compatible providers use as well,
# then Anthropic's.
_NO_CREDIT = re.compile(
    rb'"(?:error_)?(?:code|type)"\s*:\s*"(?:insufficient_quota|billing_hard_limit_reached|billing_not_active'
    rb'|enforced_spend_limit_reached)"|"message"\s*:\s*"Your credit balance is too low'
)
OVERLOADED: Final = (429, 503, 529)
UNFIT: Final = (FailureKind.PROTOCOL, FailureKind.BROKEN)
"""What a door finds to be no answer, or no whole one, that came with a good status and a good end."""
_OVER_LIMIT: Final = 429
_UNAUTHORIZED, _UNPAID = 401, 402
# TGI and text-embeddings-inference say so of their own model; OpenAI of a tool's server that the request names.
_FAILED_DEPENDENCY: Final = 424
_OF_A_TOOL: Final = b"external_connector"
# The request's or the setup's: whose key it was, and who has chosen the model, the core knows better.
_OF_THE_KEY: Final = (401, 402, 403)
_OF_THE_NAME: Final = (404, 405)
# The way to the engine is set up wrongly, or the engine was too busy to read.
_OF_THE_SETUP: Final = (407, 408, 421, 425, 429)
_DECIMAL: Final = re.compile(rb"\d+\.\d+\Z")
_LONGEST_NUMBER: Final = 18


class Said(NamedTuple):
    """What an engine said with a failure, as the core's `Failed` takes it: its hint, the provider's limit it met, the blame."""

    hint_s: float | None = None
    over_limit: bool = False
    limit: QuotaKind | None = None
    blames_request: bool = False
    blames_key: bool = False
    blames_name: bool = False


SAID_NOTHING: Final = Said()


def verdict(head: AnswerHead, body: bytes) -> tuple[FailureKind, Said]:
    """Return how this error answer counts, and what it says beside: a hint, a limit, or that the request is at fault."""
    return _judged(head.status, body, hint_s(head.headers), FailureKind.STATUS)


def is_left_undone(kind: FailureKind, said: Said, *, own_key: bool) -> bool:
    """Whether the engine has done nothing of the request, so that another one may: it knows no such model or path, has no room, or refuses the gate's own key, or its account.

    A limit that a refusal names is that of the key's owner, and is told where that is the client.
    """
    return said.blames_name or is_full(kind, said) or (own_key and (said.blames_key or kind in UNREAD))


def is_full(kind: FailureKind, said: Said) -> bool:
    """Whether an engine has no room for any client."""
    return kind is FailureKind.REFUSED and said.limit is None


def is_for_the_operator(kind: FailureKind, said: Said, *, own_key: bool) -> bool:
    """Whether a refusal is about the engine, not about its client: it has no room, or refuses the gate's own key or its account."""
    return is_full(kind, said) or (own_key and (said.blames_key or kind is FailureKind.NO_CREDIT))


def told_instead(kind: FailureKind, status: int, *, own_key: bool) -> FailureKind | None:
    """Return the failure that a client is told in place of an engine's words about the gate's own key and account; None where it gets those.

    The client's own key is good, its account is another one, and the text may show a part of ours.
    """
    if not own_key:
        return None
    if kind is FailureKind.NO_CREDIT or status == _UNPAID:
        return FailureKind.NO_CREDIT
    return kind if status == _UNAUTHORIZED else None


def blame(status: int, hint: float | None = None) -> Said:
    """Return what this status says is at fault: the request, the key that came with it, the name of a model or path, or none of them."""
    of_key, of_name = status in _OF_THE_KEY, status in _OF_THE_NAME
    of_request = 400 <= status < 500 and not (of_key or of_name or status in _OF_THE_SETUP)
    return Said(hint, blames_request=of_request, blames_key=of_key, blames_name=of_name)


def event_verdict(error: EngineError) -> tuple[FailureKind, Said]:
    """Return how an error that stands in a stream counts, and what is at fault."""
    return _judged(error.status, error.body, None, FailureKind.ERROR_EVENT)


def _judged(status: int, body: bytes, hint: float | None, kind: FailureKind) -> tuple[FailureKind, Said]:
    if lacks_credit(status, body):
        return FailureKind.NO_CREDIT, SAID_NOTHING
    if status == _FAILED_DEPENDENCY and body and body.find(_OF_A_TOOL, 0, _MOST_WORDS) < 0:
        return kind, Said(hint)
    if status in OVERLOADED:
        over = status == _OVER_LIMIT
        return FailureKind.REFUSED, Said(hint, over, named_limit(body) if over else None)
    return kind, blame(status, hint)


def lacks_credit(status: int, refusal: bytes) -> bool:
    """Return whether this 429, or Anthropic's 400, says that the account has no credit left, which is no limit that a pause would restore."""
    return status in _SAY_CREDIT and _NO_CREDIT.search(refusal[:_MOST_WORDS]) is not None


def named_limit(refusal: bytes) -> QuotaKind | None:
    """Return the limit that the body of a 429 names, None where it names none.

    OpenAI says so in `error.type` ("requests", "tokens") and in the message, Anthropic and Azure in the message alone.
    """
    words = refusal[:_MOST_WORDS].lower()
    for pattern, kind in _NAMED:
        if pattern.search(words):
            return kind
    return None


def tell_quotas(driver: Driver, engine: str, head: AnswerHead) -> None:
    """Post what the head of an answer says of the account's limits."""
    if reading := read_quota_headers(head.headers, time.time()):
        driver.post(QuotaSeen(engine, reading))


@lru_cache(maxsize=64)  # clients say the same few numbers with every request
def seconds(value: bytes | None) -> float | None:
    """Read a plain positive decimal number, None for anything else."""
    if value is None or not (value.isdigit() or _DECIMAL.match(value)) or len(value) > _LONGEST_NUMBER:
        return None
    return float(value) or None


def hint_s(headers: Headers) -> float | None:
    """Return an engine's own retry hint, milliseconds, seconds or a date, clamped to what we would say ourselves."""
    exact, given = seconds(_first(headers, b"retry-after-ms")), _first(headers, b"retry-after")
    hint = exact / 1000 if exact is not None else 0.0 if given == b"0" else seconds(given)
    if hint is None and given[:1].isalpha():
        hint = _until(given, headers)
    return None if hint is None else min(MOST_HINT_S, max(LEAST_HINT_S, hint))


def _until(date: bytes, headers: Headers) -> float | None:
    """Return how far a date lies behind the answer's own, as the clocks of provider and gate may differ."""
    try:
        return parsedate_to_datetime(date.decode("latin-1")).timestamp() - date_s(headers, time.time())
    except (ValueError, OverflowError):
        return None


def _first(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> bytes:
    return next((value for key, value in headers if key == name), b"")

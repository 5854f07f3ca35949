"""Reads what a provider says of its limits: the headers of every answer, which are posted, and the words of a 429."""

import re
from time import time

from millgate.core.events import QuotaSeen
from millgate.core.words import QuotaKind
from millgate.dialects.quota_headers import read_quota_headers
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
# An account without credit answers so, and no retry mends it: OpenAI's words, which compatible providers use as well, then Anthropic's.
_NO_CREDIT = re.compile(
    rb'"(?:error_)?(?:code|type)"\s*:\s*"(?:insufficient_quota|billing_hard_limit_reached|billing_not_active'
    rb'|enforced_spend_limit_reached)"|"message"\s*:\s*"Your credit balance is too low'
)


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
    if reading := read_quota_headers(head.headers, time()):
        driver.post(QuotaSeen(engine, reading))

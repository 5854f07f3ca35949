"""What an answer means to a caller with settings: done, come back then, come back some time, or never."""

import random
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from typing import Final, NamedTuple

REFUSALS: Final = frozenset({429, 503, 529})
"""The server is full: nothing has been computed, and the window was too large."""
_LOST: Final = frozenset({408, 409})
_FIRST_BACKOFF_S: Final = 0.5
_LONGEST_BACKOFF_S: Final = 8.0
"""As the SDKs', whose jitter is a quarter; ours is full (Brooker 2015), or a crowd comes back as a crowd."""
_NO_TIME_S: Final = 1e9
"""No sleep can be as long as a number may be."""


class Meaning(Enum):
    """What is to be done about an answer."""

    FINAL = auto()
    REFUSED = auto()
    FAILED = auto()


class CallVerdict(NamedTuple):
    """One answer judged; `hint_s` is when the server says to come back, None where it does not."""

    meaning: Meaning
    retry: bool
    hint_s: float | None = None


def judge(status: int, headers: Mapping[str, str]) -> CallVerdict:
    """Judge an answer by its status and its headers (looked up without case by the caller's mapping)."""
    told = headers.get("x-should-retry")
    retryable = status in REFUSALS or status in _LOST or status >= 500
    retry = retryable if told not in {"true", "false"} else told == "true"
    if status in REFUSALS:
        return CallVerdict(Meaning.REFUSED, retry, read_hint_s(headers))
    if retryable or told == "true":
        return CallVerdict(Meaning.FAILED, retry, read_hint_s(headers))
    return CallVerdict(Meaning.FINAL, retry=False)


def read_hint_s(headers: Mapping[str, str]) -> float | None:
    """Return the server's hint in seconds: `retry-after-ms`, else `retry-after` as seconds or as a date."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        hint_s = _number(value)
        if hint_s is not None:
            return hint_s * unit_s
        if name == "retry-after":
            return _until(value, headers.get("date"))
    return None


def backoff_s(retries: int) -> float:
    """Return how long to wait without a hint: anything up to an exponentially growing bound."""
    return random.uniform(0.0, min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2.0**retries))  # noqa: S311 - no secret


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if 0 < number < _NO_TIME_S else None


def _until(value: str, date: str | None) -> float | None:
    """Return how far a date lies behind the answer's own: the clocks of client and server may differ."""
    try:
        at = parsedate_to_datetime(value)
        answered = parsedate_to_datetime(date) if date else datetime.now(UTC)
    except (ValueError, OverflowError):  # the latter for an offset of many digits
        return None
    left = at.replace(tzinfo=at.tzinfo or UTC) - answered.replace(tzinfo=answered.tzinfo or UTC)
    return max(0.0, left.total_seconds()) or None

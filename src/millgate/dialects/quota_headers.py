"""The headers by which providers speak of limits: both families read into one record, and written from the ledger.

OpenAI: `x-ratelimit-{limit,remaining,reset}-{requests,tokens}`, resets as Go durations ("6m0s", "20ms"). Anthropic:
`anthropic-ratelimit-{requests,tokens,input-tokens,output-tokens}-{limit,remaining,reset}`, resets as RFC 3339 times,
which are held against the answer's own `Date`: the provider's clock is not ours. What is missing, does not parse or is
absurd is unknown, never an error.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import sqrt

from millgate.core.decisions import QuotaState
from millgate.core.events import QuotaReading, Remaining
from millgate.core.settings import DAY_S, MINUTE_S
from millgate.core.words import QuotaKind

Headers = Sequence[tuple[bytes, bytes]]

_LONGEST_VALUE = 64
# The largest published limits are some ten million tokens a minute; a thousand times that is no limit.
_MOST = 1e10
_LONGEST_RESET_S = 2 * DAY_S
_NUMBER = re.compile(r"\d{1,15}(\.\d{1,9})?")
_DURATION = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})?(?:ms|us|ns|h|m|s))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|us|ns|h|m|s)")
_UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

_OPENAI: Mapping[str, QuotaKind] = {"requests": QuotaKind.RPM, "tokens": QuotaKind.TPM}
_ANTHROPIC: Mapping[str, QuotaKind] = {
    "requests": QuotaKind.RPM,
    "input-tokens": QuotaKind.ITPM,
    "output-tokens": QuotaKind.OTPM,
}
_REQUESTS_AND_TOKENS: Mapping[str, tuple[QuotaKind, ...]] = {
    "requests": (QuotaKind.RPM, QuotaKind.RPD),
    "tokens": (QuotaKind.TPM, QuotaKind.TPD, QuotaKind.ITPM, QuotaKind.OTPM),
}
_WHATS = ("limit", "remaining", "reset")
WRITTEN_NAMES = tuple(
    name.encode()
    for what in _WHATS
    for name in (
        *(f"x-ratelimit-{what}-{noun}" for noun in _REQUESTS_AND_TOKENS),
        *(f"anthropic-ratelimit-{noun}-{what}" for noun in {**_REQUESTS_AND_TOKENS, **_ANTHROPIC}),
    )
)
"""Every field that tells a client of its own quotas."""
# Between a minute and a day in powers of ten: which of the two a limit is for.
_DAILY_BEYOND_S = sqrt(MINUTE_S * DAY_S)


def read_quota_headers(headers: Headers, wall_now_s: float) -> QuotaReading:
    """Return what an answer says of its provider's limits; empty for one that says nothing.

    `headers` have lower-case names. `wall_now_s` is Unix time, used where the answer has no `Date`. Anthropic's
    `tokens` repeats whichever of its limits is tightest, and is passed over.
    """
    found = {name: value for name, value in headers if b"ratelimit-" in name and len(value) <= _LONGEST_VALUE}
    if not found:
        return ()
    said_at_s = date_s(headers, wall_now_s)
    words = [_read(found, f"x-ratelimit-%s-{noun}", kind, said_at_s) for noun, kind in _OPENAI.items()]
    words += [
        _read(found, f"anthropic-ratelimit-{noun}-%s", kind, said_at_s) for noun, kind in _ANTHROPIC.items()
    ]
    said = {word.kind: word for word in words if word is not None}
    return tuple(said.values())


def write_openai(states: Iterable[QuotaState]) -> list[tuple[bytes, bytes]]:
    """Return OpenAI's headers for these buckets; of several for one noun the one with the least left of it."""
    return _written("x-ratelimit-{what}-{noun}", _tightest(states, _REQUESTS_AND_TOKENS), go_duration)


def write_anthropic(states: Iterable[QuotaState], wall_now_s: float) -> list[tuple[bytes, bytes]]:
    """Return Anthropic's headers for these buckets; resets are times from `wall_now_s`, Unix time."""
    kinds = {**_REQUESTS_AND_TOKENS, "input-tokens": (QuotaKind.ITPM,), "output-tokens": (QuotaKind.OTPM,)}
    tightest = _tightest(states, kinds)
    return _written(
        "anthropic-ratelimit-{noun}-{what}", tightest, lambda reset_s: rfc_3339(wall_now_s + reset_s)
    )


def _written(
    name: str, tightest: Mapping[str, QuotaState], reset: Callable[[float], str]
) -> list[tuple[bytes, bytes]]:
    lines = []
    for noun, state in tightest.items():
        values = (str(int(state.limit)), str(int(state.remaining)), reset(state.reset_s))
        for what, value in zip(_WHATS, values, strict=True):
            lines.append((name.format(what=what, noun=noun).encode(), value.encode()))
    return lines


def go_duration(seconds: float) -> str:
    """Return a duration as OpenAI writes it: "0s", "20ms", "1.5s", "6m0s", "1h0m3s"; rounded up to a millisecond."""
    milliseconds = -int(-max(0.0, min(seconds, _LONGEST_RESET_S)) * 1000 // 1)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest_ms = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest_ms / 1000:g}s"
    if minutes or hours:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text


def rfc_3339(unix_s: float) -> str:
    """Return a Unix time as Anthropic writes it: "2026-01-31T12:00:00Z", rounded up to a second."""
    return datetime.fromtimestamp(-int(-unix_s // 1), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _tightest(
    states: Iterable[QuotaState], kinds: Mapping[str, tuple[QuotaKind, ...]]
) -> dict[str, QuotaState]:
    every = tuple(states)
    tightest = {}
    for noun, wanted in kinds.items():
        fitting = [state for state in every if state.kind in wanted]
        if fitting:
            tightest[noun] = min(fitting, key=lambda state: state.remaining / state.limit)
    return tightest


def _read(found: Mapping[bytes, bytes], pattern: str, kind: QuotaKind, said_at_s: float) -> Remaining | None:
    """Read one noun of one family; None when it says nothing."""
    texts = [found.get((pattern % what).encode(), b"").decode("latin-1").strip() for what in _WHATS]
    if not any(texts):
        return None
    limit, remaining = _number(texts[0]), _number(texts[1])
    if limit == 0.0:
        limit = None
    if limit is not None and remaining is not None and remaining > limit:
        remaining = None
    reset_s = _reset_s(texts[2], said_at_s)
    if kind is QuotaKind.RPM and _is_daily(limit, remaining, reset_s):
        kind = QuotaKind.RPD
    return None if limit is remaining is reset_s is None else Remaining(kind, limit, remaining, reset_s)


def _is_daily(limit: float | None, remaining: float | None, reset_s: float | None) -> bool:
    """Return whether a limit on requests refills by the day: what is used comes back at limit / period."""
    if limit is None or remaining is None or not reset_s or remaining >= limit:
        return False
    return limit * reset_s / (limit - remaining) > _DAILY_BEYOND_S


def _number(text: str) -> float | None:
    value = float(text) if _NUMBER.fullmatch(text) else None
    return value if value is not None and value <= _MOST else None


def _reset_s(text: str, said_at_s: float) -> float | None:
    """Return seconds from a Go duration, plain seconds or an RFC 3339 time."""
    if _DURATION.fullmatch(text):
        reset_s = sum(float(amount) * _UNITS_S[unit] for amount, unit in _PART.findall(text))
    elif _NUMBER.fullmatch(text):
        reset_s = float(text)
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return None
        if moment.tzinfo is None:
            return None
        reset_s = max(0.0, moment.timestamp() - said_at_s)
    return reset_s if reset_s <= _LONGEST_RESET_S else None


def date_s(headers: Headers, otherwise_s: float) -> float:
    """Return when the answer was written by its own clock, Unix time."""
    for name, value in headers:
        if name == b"date" and len(value) <= _LONGEST_VALUE:
            try:
                return parsedate_to_datetime(value.decode("latin-1")).timestamp()
            except (ValueError, OverflowError):  # an offset of many digits
                break
    return otherwise_s

"""Known rate limits, kept from this side: continuous buckets for requests and for tokens in and out.

A provider's bucket refills continuously at limit / 60 a second and holds one minute's worth (recovered from the
waits that public 429 messages name). Keeping to it at home costs nothing; finding out costs a refused request.
"""

import re
from dataclasses import dataclass
from typing import Final

_MAX_TOKENS: Final = re.compile(rb'"max_(?:completion_|output_)?tokens"\s*:\s*(\d{1,9})')
_BYTES_PER_TOKEN: Final = 4
_USUAL_OUTPUT_TOKENS: Final = 256


@dataclass(frozen=True, slots=True)
class Limits:
    """Requests, input tokens and output tokens per minute; None where no limit is known."""

    rpm: float | None = None
    itpm: float | None = None
    otpm: float | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """What one call takes from each bucket."""

    requests: float = 1.0
    input_tokens: float = 0.0
    output_tokens: float = 0.0

    @classmethod
    def of(cls, body: bytes) -> "Cost":
        """Estimate a call's cost from its body: four bytes a token in, what it allows out."""
        allowed = _MAX_TOKENS.search(body)
        output_tokens = float(allowed[1]) if allowed else float(_USUAL_OUTPUT_TOKENS)
        return cls(1.0, len(body) / _BYTES_PER_TOKEN, output_tokens)


class _Bucket:
    """One limit: refills continuously, holds a minute's worth, may be overdrawn only by what is larger than it."""

    def __init__(self, per_minute: float, now: float) -> None:
        self._capacity = self._level = per_minute
        self._per_s = per_minute / 60.0
        self._at = now

    def wait_s(self, amount: float, now: float) -> float:
        self._level = min(self._capacity, self._level + (now - self._at) * self._per_s)
        self._at = now
        return max(0.0, (min(amount, self._capacity) - self._level) / self._per_s)

    def take(self, amount: float) -> None:
        """Take it; the caller has asked `wait_s` at this very instant."""
        self._level -= amount


class RequestPacing:
    """Every known limit of one host."""

    def __init__(self, limits: Limits, now: float) -> None:
        known = {"requests": limits.rpm, "input_tokens": limits.itpm, "output_tokens": limits.otpm}
        for name, per_minute in known.items():
            if per_minute is not None and per_minute <= 0:
                raise ValueError(f"{name} per minute is {per_minute}, it must be above 0")
        self._buckets = {name: _Bucket(limit, now) for name, limit in known.items() if limit is not None}

    def wait_s(self, cost: Cost, now: float) -> float:
        """Return how long until every bucket has room for this call."""
        waits = [bucket.wait_s(getattr(cost, name), now) for name, bucket in self._buckets.items()]
        return max(waits, default=0.0)

    def take(self, cost: Cost) -> None:
        """Take this call from every bucket."""
        for name, bucket in self._buckets.items():
            bucket.take(getattr(cost, name))

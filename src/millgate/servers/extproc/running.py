"""Requests that run at an engine, by way of Envoy: each until the access log tells its end, or its lease is over.

An entry can be lost: Envoy died, or this processor was away. So a slot has a lease: while entries of its request come
(Envoy writes one at each `access_log_flush_interval`) it is renewed; three that are missing end it. Where none has ever
come the request may be silent for `lease_s` past the time of its first event.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from millgate.dialects.contract import Usage
from millgate.servers.extproc.access_log import LoggedRequest

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

    __slots__ = ("ends_at", "heard_at", "request")

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
            self._interval_s = max(self._interval_s or 0.0, now - lease.heard_at)
        lease.heard_at = now
        if self._interval_s is not None:
            lease.ends_at = now + self._silence_s(self._interval_s)

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
            self._wait_for_unread(silent_s)
        over = [(name, lease) for name, lease in self._leases.items() if lease.ends_at <= now]
        for name, lease in over:
            del self._leases[name]
            self.lost += 1
            lease.request.lost()

    def _wait_for_unread(self, silent_s: float) -> None:
        """Give every request the time in which nothing was read; what is lost of it tells nothing of the interval."""
        for lease in self._leases.values():
            lease.ends_at += silent_s
            lease.heard_at = None

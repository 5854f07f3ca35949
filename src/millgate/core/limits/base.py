"""The number, apart from the gate that counts against it (the split of Netflix's Limit and Limiter).

What an algorithm learns from is one reading a second, made by `signal`.
"""

from typing import NamedTuple, Protocol


class LimitReading(NamedTuple):
    """One window of one engine, as a limit sees it; seconds, tokens, streams.

    `tpot_s` is what the steered share of answers keeps. `samples` counts the tokens whose gaps are in it; it is None without any. `ttft_excess_p90_s` is the time
    to first token beyond the predicted prefill. `failures` and `answers` count what
    ended in this window. `kv_share` (0..1) and `waiting` are the engine's own gauges, None where it tells nothing.
    """

    window_s: float
    max_inflight: int
    samples: int
    tpot_s: float | None
    ttft_excess_p90_s: float | None
    failures: int
    answers: int
    kv_share: float | None
    waiting: int | None


class Limit(Protocol):
    """How many streams one engine may run at once: always within 1 and its hard cap."""

    def current(self) -> int:
        """Return the limit in force, at least 1."""

    def observe(self, reading: LimitReading) -> None:
        """Learn from one window; the limit may move."""

    def adopt(self, hard_cap: int) -> None:
        """Take a new hard cap; a limit above it falls to it at once. ValueError below 1."""


def checked_cap(hard_cap: int) -> int:
    """Return the hard cap; ValueError when not even one stream may run."""
    if hard_cap < 1:
        raise ValueError(f"max_inflight must be at least 1, not {hard_cap}")
    return hard_cap

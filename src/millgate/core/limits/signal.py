"""What an adaptive limit learns from, collected between two control ticks of one engine.

The samples are the time per output token while streams run, and the time to a first token less the predicted prefill: both
say how loaded the engine is *now*. The time of a whole answer comes late and is mostly its length.
"""

from abc import ABC, abstractmethod

from millgate.core.limits.gate import LimitReading
from millgate.core.limits.pace import Pace
from millgate.core.measure import UPPER_SHARE, Sketch
from millgate.core.settings import TARGET_SHARE, ServicePrior

# One cut of a tenth for overload, at most once a window (algorithm G2; Netflix's AIMD has the same ratio), and overload
# is also an engine that keeps more than this share of its KV cache busy, or so many waiting before it (G2).
OVERLOAD_RATIO = 0.9
MOST_WAITING = 5
# A reading covers at least this time and this many tokens, and never more than the longest (1 s, 50 samples and
# 30 s, as in failsafe-go's adaptive limiter). A window that ends at the longest has few samples: limits freeze.
LEAST_WINDOW_S = 1.0
LEAST_SAMPLES = 50
LONGEST_WINDOW_S = 30.0


class Signal:
    """Collects the samples of one engine, in the same memory for any number of streams; `share` of its answers are steered."""

    def __init__(self, now: float, prior: ServicePrior, share: float = TARGET_SHARE) -> None:
        self._pace, self._share = Pace(prior, share), share
        self._inflight = self._max_inflight = 0
        self._begin(now)

    def inflight(self, streams: int) -> None:
        """So many permits are out from now on."""
        self._inflight = streams
        if streams > self._max_inflight:  # noqa: PLR1730 - max() would cost a call at every admission and release
            self._max_inflight = streams

    def first_token(self, excess_s: float) -> None:
        """A first token came so much later than its prefill was predicted to take; negative when sooner."""
        self._excess.add(excess_s)

    def progressed(self, output_tokens: int, elapsed_s: float) -> None:
        """A stream made so many tokens since its first token or since it was last looked at, in this time.

        Of an answer that the gate could not look into, all at its end, beyond its predicted time to first token.
        """
        self._tokens += output_tokens
        self._stream_s += max(0.0, elapsed_s)

    def finished(self, began_at: float, tpot_s: float) -> None:
        """An answer is whole: when its first token came (or was due), and its mean TPOT, 0 for a single token."""
        self._answers += 1
        self._pace.answered(began_at, tpot_s)

    def failed(self) -> None:
        """The engine failed an attempt in a way that load can explain: it refused, timed out, or broke off."""
        self._failures += 1

    def read(self, now: float, kv_share: float | None, waiting: int | None) -> LimitReading | None:
        """Return the window since the last reading and begin a new one; None while it is too short.

        `kv_share` and `waiting` are the engine's gauges.
        """
        window_s = now - self._since
        if window_s < LEAST_WINDOW_S or (self._tokens < LEAST_SAMPLES and window_s < LONGEST_WINDOW_S):
            return None
        if self._tokens >= LEAST_SAMPLES:
            self._pace.measured(now, self._max_inflight, self._stream_s / self._tokens)
        reading = LimitReading(
            window_s,
            self._max_inflight,
            self._tokens,
            self.tpot_s(self._max_inflight, self._share),
            self._excess.quantile(UPPER_SHARE) if self._excess.samples else None,
            self._failures,
            self._answers,
            kv_share,
            waiting,
        )
        self._begin(now)
        return reading

    def tpot_s(self, streams: int, share: float) -> float | None:
        """Return the TPOT that this share of answers keeps at so many streams; None before the first window."""
        return self._pace.quantile_s(streams, share)

    def _begin(self, now: float) -> None:
        self._since = now
        self._max_inflight = self._inflight
        self._tokens = self._answers = self._failures = 0
        self._stream_s = 0.0
        self._excess = Sketch()


class AdaptiveLimit(ABC):
    """A limit that begins at `start` and moves between `minimum` and its hard cap, which wins; all are 1 at least."""

    def __init__(self, hard_cap: int, start: int, minimum: int = 1) -> None:
        self._hard_cap = hard_cap
        self._minimum = minimum
        self._move_to(float(start))

    def current(self) -> int:
        """Return the limit in force: whole streams, at least 1, never above the hard cap."""
        return int(self._level)

    def adopt(self, hard_cap: int) -> None:
        """Take a new hard cap; a limit above it falls to it at once, one below it may grow from now on."""
        self._hard_cap = hard_cap
        self._move_to(self._level)

    @abstractmethod
    def observe(self, reading: LimitReading) -> None:
        """Learn from one window."""

    def _move_to(self, level: float) -> None:
        self._level = min(float(self._hard_cap), max(float(self._minimum), level))

    def _cut(self, reading: LimitReading, ratio: float) -> None:
        """Fall by this ratio, counted from what ran: a limit would end far too low if it fell while old streams run."""
        self._move_to(min(self._level, ratio * max(self._level, float(reading.max_inflight))))


def overloaded(reading: LimitReading) -> bool:
    """Return whether this window shows overload whatever its TPOT: errors, a full KV cache, a queue inside."""
    # A tenth of what ended failed. A cut for any error, as G2 has it, lets two errors in a hundred that have nothing to do
    # with load keep a limit at its minimum.
    ended = reading.failures + reading.answers
    if reading.failures and reading.answers <= UPPER_SHARE * ended:
        return True
    return (reading.kv_share or 0.0) > OVERLOAD_RATIO or (reading.waiting or 0) > MOST_WAITING

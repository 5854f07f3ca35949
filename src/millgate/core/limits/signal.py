"""What an adaptive limit learns from, collected between two control ticks of one engine.

The samples are the time per output token while streams run, and the time to a first token less the predicted
prefill: both say how loaded the engine is *now*. The time of a whole answer does not: its length, which the user
chose, makes most of it, and it comes 10 to 120 s late.
"""

from millgate.core.limits.base import LimitReading
from millgate.core.limits.pace import Pace
from millgate.core.measure.sketch import Sketch
from millgate.core.settings import ServicePrior

# A reading covers at least this time and this many tokens, and never more than the longest (1 s, 50 samples and
# 30 s, as in failsafe-go's adaptive limiter). A window that ends at the longest has few samples: limits freeze.
LEAST_WINDOW_S = 1.0
LEAST_SAMPLES = 50
LONGEST_WINDOW_S = 30.0
# A mean of fewer tokens than this teaches the pace nothing (the freeze of G2, in the limits too).
FEWEST_SAMPLES = 10
# More streams than the limit by a tenth and one more: they were let in before it fell. No request joins them, so no prompt
# is read beside them, and their tokens take half as long as those of as many among whom some end and some begin. What
# they show is therefore compared with what an engine does that reads as little. Otherwise a slow engine that started at
# ten times what it can seemed to have answers 36 % above their mean instead of 21 %, and forgot it in two minutes:
# p90 from the 60th second was 0.947 of the SLO, 0.977 with it (means of forty seeds). A limit that sways is not meant:
# it falls by a tenth at a sign of overload, by one where it is small, and counts what is read a second later.
_DRAINING = 1.1


class Signal:
    """Collects the samples of one engine, in the same memory for any number of streams."""

    __slots__ = (
        "_answers",
        "_began",
        "_excess",
        "_failures",
        "_inflight",
        "_max_inflight",
        "_pace",
        "_prompt_tokens",
        "_since",
        "_stream_s",
        "_tokens",
    )

    def __init__(self, now: float, prior: ServicePrior) -> None:
        self._since = now
        self._pace = Pace(prior)
        self._excess = Sketch()
        self._inflight = self._max_inflight = 0
        self._tokens = self._began = self._answers = self._failures = self._prompt_tokens = 0
        self._stream_s = 0.0

    def inflight(self, streams: int) -> None:
        """So many permits are out from now on."""
        self._inflight = streams
        if streams > self._max_inflight:  # noqa: PLR1730 - max() would cost a call at every admission and release
            self._max_inflight = streams

    def first_token(self, excess_s: float) -> None:
        """A first token came so much later than its prefill was predicted to take; negative when sooner."""
        self._excess.add(excess_s)
        self._began += 1

    def came_whole(self) -> None:
        """The first that was seen of an answer is its end, and its prompt counts as read now."""
        self._began += 1

    def progressed(self, output_tokens: int, elapsed_s: float) -> None:
        """A stream made so many tokens since its first token or since it was last looked at, in this time.

        Also for the rest of an answer at its end, and once for all of one that the gate could not look into (its time
        then is what it took beyond its predicted time to first token).
        """
        self._tokens += output_tokens
        self._stream_s += max(0.0, elapsed_s)

    def finished(self, began_at: float, tpot_s: float, prompt_tokens: int) -> None:
        """An answer is whole: when its first token came (or was due), and its mean TPOT, 0 for a single token.

        With it the prompt tokens that were read for it, without those that the engine had in its cache.
        """
        self._answers += 1
        self._prompt_tokens += prompt_tokens
        self._pace.answered(began_at, tpot_s)

    def failed(self) -> None:
        """The engine failed an attempt in a way that load can explain: it refused, timed out, or broke off."""
        self._failures += 1

    def read(
        self, now: float, limit: int, kv_share: float | None, waiting: int | None
    ) -> LimitReading | None:
        """Return the window since the last reading and begin a new one; None while it is too short.

        `limit` is the one that was in force, `kv_share` and `waiting` are the engine's gauges.
        """
        window_s = now - self._since
        if window_s < LEAST_WINDOW_S or (self._tokens < LEAST_SAMPLES and window_s < LONGEST_WINDOW_S):
            return None
        if self._tokens >= FEWEST_SAMPLES:
            self._learn(now, limit)
        reading = LimitReading(
            now,
            window_s,
            self._max_inflight,
            self._tokens,
            self._pace.p90_s(self._max_inflight),
            self._excess.quantile(0.9) if self._excess.samples else None,
            self._tokens / window_s,
            self._failures,
            self._answers,
            kv_share,
            waiting,
            self._pace.tail(),
        )
        self._begin(now)
        return reading

    def _learn(self, now: float, limit: int) -> None:
        streams, tokens, pace = self._max_inflight, self._tokens, self._pace
        pace.worked(self._answers, self._prompt_tokens, tokens, streams)
        is_draining = streams > _DRAINING * limit + 1.0
        began_share = pace.began_share(self._began, tokens) if is_draining else 1.0
        pace.measured(now, streams, self._stream_s / tokens, began_share)

    def _begin(self, now: float) -> None:
        self._since = now
        self._max_inflight = self._inflight
        self._tokens = self._began = self._answers = self._failures = self._prompt_tokens = 0
        self._stream_s = 0.0
        self._excess = Sketch()

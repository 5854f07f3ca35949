"""The TPOT that a share of the answers gets from an engine, nine in ten unless named: told within seconds, true in the long run.

It is the product of three parts:

- A *line* from the engine's prior: TPOT = base + slope x streams. Only its shape matters: paces at different numbers of
  streams are compared by their ratio to it, so that averages do not lag behind the moves of the limit. The slope holds
  the prompts of other streams: with P prompt tokens to an output token, each stream delays each token by P of prefill.
- The *level*: the pace of the last windows over the line. Speeds are averaged, not times, as an answer's pace is its
  tokens over its time.
- The *tail*: the quantile of what whole answers got over the level at their end. Single seconds know neither the short answer that
  met one long prompt nor how a long one averages out. Whatever is wrong with line or level is made good here.

Level and tail are nearly forgotten when the number of streams has moved *far* from where they were learned. The line is
not straight, and tails are thinner where more streams run. The constants were chosen in the closed loop of
`lab/limiters`, on every shipped profile.
"""

from math import log

from millgate.core.measure import ENOUGH, MEMORY, UPPER_SHARE, Ewma, Sketch
from millgate.core.settings import TARGET_SHARE, ServicePrior

PROMPT_PER_OUTPUT = 5.0
"""Prompt tokens read for each that is written: 1,020 to 211 and 1,155 to 211 in mean, Azure's 2023 conversations, rounded."""
# Ten windows average out the prompts of a slow engine (two a second). With 25 four more of 92 cells end outside the aim, with
# a hundredth fewer tokens (limiter_shootout and tight_slos, five seeds).
LEVEL_WINDOWS = 10.0
# The believed excess of the tail over the coefficient of variation of windows: 1.28 at the p90 of a normal law, over the
# root of the six windows that an answer lasts. At other quantiles it grows as an exponential tail does.
_TAIL_PER_SPREAD = 0.5
# Far is a TPOT a quarter longer or shorter by the line: four streams and seventeen, forty and seventy.
_FAR = 1.25
# What is kept of level and tail after a far move.
_KEPT = 0.1


def slope_s(prior: ServicePrior) -> float:
    """Return how much each further stream adds to the TPOT of all, its prompt included."""
    return prior.tpot_per_stream_s + PROMPT_PER_OUTPUT * prior.ttft_per_token_s


class Pace:
    """The TPOT of one engine by streams; seconds. Its tail is believed and remembered as that of `share` of the answers."""

    def __init__(self, prior: ServicePrior, share: float = TARGET_SHARE) -> None:
        self._base_s, self._slope_s = prior.tpot_base_s, slope_s(prior)
        self._speed = Ewma(1.0, memory=LEVEL_WINDOWS, prior_samples=0.0)
        # A tail is remembered until enough answers lie beyond its quantile: the two hundred of `MEMORY` at p90, two
        # thousand at p99.
        self._tail = Sketch(memory=max(MEMORY, round(ENOUGH / (1.0 - share))))
        self._tail_per_spread = _TAIL_PER_SPREAD * (log(1.0 - share) / log(1.0 - UPPER_SHARE))
        self._level_s = self._moved_at = 0.0
        self._learned_at = 0

    def measured(self, now: float, streams: int, mean_tpot_s: float) -> None:
        """Learn one window: the mean time per output token over all streams; nothing from a time of 0.

        0 is that of answers that the gate could not look into, and that were all there sooner than predicted.
        """
        if not mean_tpot_s > 0.0:
            return
        line_s = self._line_s(streams)
        if not self._level_s or not 1.0 / _FAR < line_s / self._line_s(self._learned_at) < _FAR:
            self._move(now, streams)
        self._speed.add(line_s / mean_tpot_s)
        self._level_s = line_s / self._speed.mean

    def answered(self, began_at: float, tpot_s: float) -> None:
        """Learn one whole answer: when its first token came, and its mean TPOT; nothing from before the last far move."""
        if self._level_s and tpot_s > 0.0 and began_at >= self._moved_at:
            self._tail.add(tpot_s / self._level_s)

    def quantile_s(self, streams: int, quantile: float) -> float | None:
        """Return the TPOT that this share of answers keeps at so many streams; None before the first window."""
        return self.tail(quantile) * self._line_s(streams) / self._speed.mean if self._level_s else None

    def tail(self, quantile: float) -> float:
        """Return what this share of answers keeps over the mean pace; 1 where all answers are alike.

        What is not yet measured is believed: the more windows vary, the more answers do.
        """
        known = min(1.0, self._tail.samples / MEMORY)
        believed = 1.0 + self._tail_per_spread * self._speed.deviation / self._speed.mean
        return (1.0 - known) * believed + known * self._tail.quantile(quantile)

    def _move(self, now: float, streams: int) -> None:
        """Learn at this number of streams from now on, and keep little of what was learned elsewhere."""
        kept = _KEPT * LEVEL_WINDOWS if self._level_s else 0.0
        self._speed = Ewma(self._speed.mean, memory=LEVEL_WINDOWS, prior_samples=kept)
        self._tail.fade(_KEPT)
        self._learned_at, self._moved_at = streams, now

    def _line_s(self, streams: int) -> float:
        """Return the TPOT by the prior, 1 where the prior knows nothing: only ratios count."""
        return self._base_s + self._slope_s * streams or 1.0

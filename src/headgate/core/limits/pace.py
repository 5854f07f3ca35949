"""What TPOT do nine users in ten get from this engine now: told within seconds, true in the long run.

Three parts, each as fast as it can be without noise:

- A *line*, the engine's prior: TPOT = base + slope x streams. Only its shape matters. Paces measured at different
  numbers of streams are compared by their ratio to it, so that they may be averaged over seconds without the
  control loop lagging behind its own moves. The slope holds what the prompts of others cost as well: with P
  prompt tokens to an output token, each stream delays each token by P tokens of prefill.
- The *level*, the mean pace of the last windows over the line. One window alone says little: on a slow engine
  two prompts, more or less, double the pace of a second, and windows spread by 5 to 50 % around their mean.
- The *tail*: what whole answers got, over the level that was in force while they ran; its p90. Samples of one
  second know neither the short answer that met one long prompt nor how a long one averages out: their own p90 was
  5 % below that of answers on an 8B model with 64 streams, and 32 % above it on a slow 70B one with 3. Since the
  tail is measured against the very number that a limit holds constant, whatever is wrong with line or level ends
  in it and is made good.

Both are averaged for long, because every error of theirs moves the limit, and a limit that moves spreads the very
paces whose p90 it holds: at an SLO of 1.5 times a lone stream's TPOT a limit that varies by a fifth has 5 % fewer
tokens at the same p90 than one that stands still. So that a long memory does not hold on to what is over, both are
nearly forgotten when the number of streams has moved *far* from where they were learned: the line is not straight,
and at fifty streams the tail is thinner than at seven. Far is measured in TPOT, by the line: five streams for three
change a TPOT by a twentieth, and a limit of four that forgot whenever it became five or three would never learn.

The constants were chosen in the closed loop of `sim/limiters`, on every shipped profile, seeds 100 to 109; those
of the believed tail and of far on seeds 1 to 6 and 101 to 110.
"""

from bisect import bisect_right
from math import sqrt

from headgate.core.limits.sketch import Sketch
from headgate.core.measure.ewma import Ewma
from headgate.core.settings import ServicePrior

_QUANTILE = 0.9
# Prompt tokens to an output token: 1,020 to 211 and 1,155 to 211 in mean for Azure's 2023 conversations, rounded.
PROMPT_PER_OUTPUT = 4.0
# 25 windows average out the prompts of a slow engine (two a second). With 8 windows p90 over all profiles ends between
# 0.95 and 1.04 of one SLO, with 25 between 0.97 and 1.00, and 40 or 80 gain nothing.
_LEVEL_WINDOWS = 25.0
# No window more than doubles the level: an engine that stood still for seconds is not so much slower after it.
_MOST_JUMP = 2.0
# Four hundred answers: the p90 of a hundred is uncertain by 2 %. Before them fifty believed ones.
_TAIL_ANSWERS = 400.0
_PRIOR_ANSWERS = 50.0
# What is believed of the tail: an answer averages the paces of the windows that it lasts, so it varies by their spread
# over the root of their number. 1.5 of that where a normal law has 1.28 at its p90, for short answers average less.
# At 1 to 4 streams true tails are 1.00 to 1.12 (three profiles, three laws of lengths); a tenth believed of them all
# costs an SLO of 1.2 times a lone stream's TPOT a tenth of its tokens. It is still the most that is believed: a slow
# engine's mean of windows lies above that of its tokens, and 1.15 took 6 % of such a one's tokens at three times. But of
# answers that last less than six windows more is: those to code completions, of 13 tokens beside prompts of 1,469, have
# tails of 1.5 to 2, and with a tenth believed of them p90 ended 5 to 8 % above the SLO, with this 2 to 3 %.
_TAIL_PER_SPREAD = 1.5
_MOST_PRIOR_EXCESS = 0.1
_MOST_EXCESS_OF_A_WINDOW = 0.6
# Four windows, believed for two answers, before any has ended.
_PRIOR_LASTS = 4.0
# Far is a TPOT a quarter longer or shorter: four streams and seventeen, forty and seventy. As the line has it, or with
# fifty streams to double a lone one's TPOT (35 to 52 on the shipped profiles), where the prior has no slope.
_FAR = 1.25
_MOST_TO_DOUBLE = 50.0
# What is kept of the level after such a move, as a number of windows, and of the tail's weight.
_KEPT_WINDOWS = 3.0
_KEPT_TAIL = 0.1
# Readings remembered, so that an answer is compared with the level of its whole life: a minute or two.
_READINGS = 128


def slope_s(prior: ServicePrior) -> float:
    """Return how much each further stream adds to the TPOT of all, its prompt included."""
    return prior.tpot_per_stream_s + PROMPT_PER_OUTPUT * prior.ttft_per_token_s


class Pace:
    """The TPOT of one engine by streams; seconds."""

    __slots__ = (
        "_base_s",
        "_lasts",
        "_learned_at",
        "_level",
        "_moved_at",
        "_slope_s",
        "_sums",
        "_tail",
        "_times",
    )

    def __init__(self, prior: ServicePrior) -> None:
        self._base_s = prior.tpot_base_s
        self._slope_s = slope_s(prior)
        self._level = Ewma(1.0, memory=_LEVEL_WINDOWS, prior_samples=0.0)
        self._tail = Sketch(_TAIL_ANSWERS)
        self._lasts = Ewma(_PRIOR_LASTS, prior_samples=2.0)
        self._times: list[float] = []
        self._sums = [0.0]
        self._learned_at = 0.0
        self._moved_at = 0.0

    def measured(self, now: float, streams: int, mean_tpot_s: float) -> None:
        """Learn one window: the mean time per output token over all streams.

        Nothing from none at all: answers that nobody could look into may all be there sooner than predicted.
        """
        if not mean_tpot_s > 0.0:
            return
        if self._is_far(streams):
            self._move(now, streams)
        ratio = mean_tpot_s / self._line_s(streams)
        if self._times:
            ratio = min(ratio, _MOST_JUMP * self._level.mean)
        self._level.add(ratio)
        self._times.append(now)
        self._sums.append(self._sums[-1] + self._mean_s(streams))
        if len(self._times) > 2 * _READINGS:
            del self._times[:_READINGS], self._sums[:_READINGS]

    def answered(self, began_at: float, tpot_s: float) -> None:
        """Learn one whole answer: when its first token came, and its mean TPOT.

        One that began before the last far move says nothing about either side of it.
        """
        times, sums = self._times, self._sums
        if not times or not tpot_s > 0.0 or began_at < self._moved_at:
            return
        ended = bisect_right(times, began_at)
        first = min(ended, len(times) - 1)
        level_s = (sums[-1] - sums[first]) / (len(times) - first)
        self._tail.add(tpot_s / level_s)
        self._lasts.add(1.0 + len(times) - ended)

    def p90_s(self, streams: int) -> float | None:
        """Return the TPOT that nine answers in ten keep at so many streams; None before the first window."""
        return self._tail_ratio() * self._mean_s(streams) if self._times else None

    def p90_per_stream_s(self) -> float | None:
        """Return how much one stream more adds to that TPOT, by the line; None before the first window."""
        return self._tail_ratio() * self._level.mean * self._slope_s if self._times else None

    def tail(self) -> float | None:
        """Return that TPOT over the mean pace; None before the first window."""
        return self._tail_ratio() if self._times else None

    def _is_far(self, streams: int) -> bool:
        if not self._times:
            return True
        slope_s = max(self._slope_s, self._base_s / _MOST_TO_DOUBLE)
        ratio = (self._base_s + slope_s * streams) / (self._base_s + slope_s * self._learned_at)
        return not 1.0 / _FAR < ratio < _FAR

    def _move(self, now: float, streams: int) -> None:
        """From now on learn at this number of streams, and keep little of what was learned elsewhere."""
        self._learned_at, self._moved_at = float(streams), now
        kept = _KEPT_WINDOWS if self._times else 0.0
        self._level = Ewma(self._level.mean, memory=_LEVEL_WINDOWS, prior_samples=kept)
        self._tail.fade(_KEPT_TAIL)

    def _tail_ratio(self) -> float:
        samples = self._tail.samples
        measured = self._tail.quantile(_QUANTILE) or 0.0
        return (_PRIOR_ANSWERS * self._believed_tail() + samples * measured) / (_PRIOR_ANSWERS + samples)

    def _believed_tail(self) -> float:
        lasts = self._lasts.mean
        most = max(_MOST_PRIOR_EXCESS, _MOST_EXCESS_OF_A_WINDOW / lasts)
        return 1.0 + min(most, _TAIL_PER_SPREAD * self._level.deviation / self._level.mean / sqrt(lasts))

    def _mean_s(self, streams: int) -> float:
        return self._level.mean * self._line_s(streams)

    def _line_s(self, streams: int) -> float:
        return max(1e-6, self._base_s + self._slope_s * streams)

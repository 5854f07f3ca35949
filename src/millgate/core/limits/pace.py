"""What TPOT do nine answers in ten get from this engine now: told within seconds, true in the long run.

Three parts, each as fast as it can be without noise:

- A *line*, from the engine's prior: TPOT = base + slope x streams. Only its shape matters. Paces measured at
  different numbers of streams are compared by their ratio to it, so that they may be averaged over seconds without
  the control loop lagging behind its own moves. The slope holds what the prompts of others cost as well: with P
  prompt tokens to an output token, each stream delays each token by P tokens of prefill, and P is measured
  (`prompt_share`). With a slope of half the true one every step goes too far and is taken back.
  While more streams run than the limit allows no request joins them and few prompts are read: such a window is compared
  with the line for what was read in it.
- The *level*, the pace of the last windows over the line. One window alone says little: on a slow engine two
  prompts, more or less, double the pace of a second, and windows spread by 5 to 30 % around their mean, each
  independent of the one before. Averaged are speeds, not times: what an answer gets is its tokens over its time, so a
  second in which little was written weighs as a second. The mean of times lies above it by the variance of the
  windows, 9 % where they spread by 0.3, and is thrown further by each.
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

The constants were chosen in the closed loop of `sim/limiters`, on every shipped profile.
"""

from bisect import bisect_right
from math import sqrt

from millgate.core.limits.prompt_share import PROMPT_PER_OUTPUT, PromptShare
from millgate.core.measure.ewma import Ewma
from millgate.core.measure.sketch import Sketch
from millgate.core.settings import ServicePrior

_QUANTILE = 0.9
# Ten windows average out the prompts of a slow engine (two a second). With 25 four more of 92 cells end outside the aim, with
# a hundredth fewer tokens (limiter_shootout and tight_slos, five seeds).
_LEVEL_WINDOWS = 10.0
# Four hundred answers: the p90 of a hundred is uncertain by 2 %. Before them fifty believed ones, forgotten as all are:
# a ninth that stays for ever held tails of 1.15 at 1.14 and those of code completions, 1.5, at 1.48.
_TAIL_ANSWERS = 400.0
_PRIOR_ANSWERS = 50.0
# What is believed of the tail: an answer averages the paces of the windows that it lasts, so it varies by their spread
# over the root of their number. 1.5 of that where a normal law has 1.28 at its p90, for short answers average less.
# At 1 to 4 streams true tails are 1.00 to 1.12 (three profiles, three laws of lengths); a tenth believed of them all
# costs an SLO of 1.2 times a lone stream's TPOT a tenth of its tokens. Slow engines with thirty streams have 1.12 to
# 1.2, and with a tenth believed at most p90 ended up to 3 % above an SLO of twice a lone stream's TPOT. Of answers that
# last less than two windows more is believed: those to code completions, of 13 tokens beside prompts of 1,469, have
# tails of 1.5 to 2.
_TAIL_PER_SPREAD = 1.5
_MOST_PRIOR_EXCESS = 0.3
_MOST_EXCESS_OF_A_WINDOW = 0.6
# Four windows, believed for two answers, before any has ended.
_PRIOR_LASTS = 4.0
# Far is a TPOT a quarter longer or shorter: four streams and seventeen, forty and seventy. As the prior's line has it
# (where code is completed one stream more would be far by the measured one, and nothing would be learned), or with
# fifty streams to double a lone one's TPOT (35 to 52 on the shipped profiles), where the prior has no slope.
_FAR = 1.25
_MOST_TO_DOUBLE = 50.0
# What is kept of the level after such a move, as a number of windows, and of the tail's weight.
_KEPT_WINDOWS = 3.0
_KEPT_TAIL = 0.1
# Readings remembered, so that an answer is compared with the level of its whole life: a minute or two.
_READINGS = 128


def slope_s(prior: ServicePrior, prompt_per_output: float = PROMPT_PER_OUTPUT) -> float:
    """Return how much each further stream adds to the TPOT of all, its prompt included."""
    return prior.tpot_per_stream_s + prompt_per_output * prior.ttft_per_token_s


class Pace:
    """The TPOT of one engine by streams; seconds."""

    __slots__ = (
        "_base_s",
        "_far_slope_s",
        "_lasts",
        "_learned_at",
        "_moved_at",
        "_prior",
        "_prompts",
        "_slope_s",
        "_speed",
        "_sums",
        "_tail",
        "_times",
    )

    def __init__(self, prior: ServicePrior) -> None:
        self._prior = prior
        self._prompts = PromptShare()
        self._base_s = prior.tpot_base_s
        self._slope_s = slope_s(prior)
        self._far_slope_s = max(self._slope_s, self._base_s / _MOST_TO_DOUBLE)
        self._speed = Ewma(1.0, memory=_LEVEL_WINDOWS, prior_samples=0.0)
        self._tail = Sketch(memory=_TAIL_ANSWERS)
        self._lasts = Ewma(_PRIOR_LASTS, prior_samples=2.0)
        self._times: list[float] = []
        self._sums = [0.0]
        self._learned_at = 0.0
        self._moved_at = 0.0

    def worked(self, answers: int, prompt_tokens: int, output_tokens: int, streams: int) -> None:
        """Learn one window's mix: the answers that ended in it, their prompts, and the tokens made in it, above 0.

        It turns the line around what is known: at so many streams the TPOT stays, whatever the slope.
        """
        before_s = self._line_s(streams)
        self._prompts.add(answers, prompt_tokens, output_tokens)
        self._slope_s = slope_s(self._prior, self._prompts.prompt_per_output())
        self._speed.scale(self._line_s(streams) / before_s)

    def began_share(self, began: int, output_tokens: int) -> float:
        """Return how many answers began in a window to each that usually ends with so many tokens, above 0."""
        return self._prompts.began_share(began, output_tokens)

    def measured(self, now: float, streams: int, mean_tpot_s: float, began_share: float = 1.0) -> None:
        """Learn one window: the mean time per output token over all streams.

        It is compared with the line for the prompts that were read in it: with half of them where half as many answers
        began as usually end. Nothing is learned from no time at all: answers that the gate could not look into may all be
        there sooner than predicted.
        """
        if not mean_tpot_s > 0.0:
            return
        if self._is_far(streams):
            self._move(now, streams)
        line_s = self._line_s(streams, began_share)
        self._speed.add(line_s / mean_tpot_s)
        self._times.append(now)
        self._sums.append(self._sums[-1] + line_s / self._speed.mean)
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
        return self.tail() * self._mean_s(streams) if self._times else None

    def tail(self) -> float:
        """Return what nine answers in ten keep over the mean pace; 1 where all answers are alike."""
        samples = self._tail.samples
        measured = self._tail.quantile(_QUANTILE)
        believed = _PRIOR_ANSWERS * (1.0 - samples / _TAIL_ANSWERS)
        return (believed * self._believed_tail() + samples * measured) / (believed + samples)

    def _is_far(self, streams: int) -> bool:
        if not self._times:
            return True
        slope_s = self._far_slope_s
        ratio = (self._base_s + slope_s * streams) / (self._base_s + slope_s * self._learned_at)
        return not 1.0 / _FAR < ratio < _FAR

    def _move(self, now: float, streams: int) -> None:
        """From now on learn at this number of streams, and keep little of what was learned elsewhere."""
        self._learned_at, self._moved_at = float(streams), now
        kept = _KEPT_WINDOWS if self._times else 0.0
        self._speed = Ewma(self._speed.mean, memory=_LEVEL_WINDOWS, prior_samples=kept)
        self._tail.fade(_KEPT_TAIL)

    def _believed_tail(self) -> float:
        lasts = self._lasts.mean
        most = max(_MOST_PRIOR_EXCESS, _MOST_EXCESS_OF_A_WINDOW / lasts)
        return 1.0 + min(most, _TAIL_PER_SPREAD * self._speed.deviation / self._speed.mean / sqrt(lasts))

    def _mean_s(self, streams: int) -> float:
        return self._line_s(streams) / self._speed.mean

    def _line_s(self, streams: int, began_share: float = 1.0) -> float:
        prompts_s = (self._slope_s - self._prior.tpot_per_stream_s) * streams
        return max(1e-6, self._base_s + self._slope_s * streams - (1.0 - began_share) * prompts_s)

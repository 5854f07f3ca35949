"""What one key of the length hierarchy predicts: a line in `max_tokens`, by the better of two predictors.

Two things can predict an answer's length: what such answers usually are, and what its user allows. Where users
set `max_tokens` exactly (agents, classification, load tests) the answer is as long as that; where everybody sends
4096 it says nothing. So a key keeps a sketch of the output and one of output / `max_tokens`, and predicts by the
one whose recent logarithmic error is smaller.
"""

from math import exp, log
from typing import Final, Self

from millgate.core.measure.sketch import Sketch
from millgate.core.sizing.first_answers import FirstAnswers
from millgate.core.sizing.prompt_trend import Centre, PromptTrend

# The quantile that a reservation covers; what outgrows it is re-reserved as it streams.
_RESERVED_SHARE: Final = 0.95
# What lies below a key counts as eight of its own answers: n answers are believed by n / (n + 8) (Buehlmann, *Experience
# rating and credibility*, ASTIN Bulletin 1967, with one k for all keys). A k learned from how far keys differ served 0.1 +- 0.3
# points of goodput more or fewer (`lab`, unknown lengths, four seeds), and took 80 lines.
_BELOW_ANSWERS: Final = 8.0
# The prior below the last level counts as a quarter of an answer, for it knows nothing.
_PRIOR_ANSWERS: Final = 0.25
# An old answer weighs 1/e after this many: long enough for a steady 95th percentile, short enough to follow a
# new release within a minute of traffic.
_MEMORY_ANSWERS: Final = 200.0
# Which predictor is better is judged over about this many answers.
_CONTEST_ANSWERS: Final = 20.0
# `max_tokens` must predict this much better than the mean: where both say nothing, the choice must not flutter.
_CLEARLY: Final = 0.9
# Readings are taken anew with every answer at first, later every so many, for they hardly move.
_LONGEST_STALE_ANSWERS: Final = 16
_LONGEST_OUTPUT: Final = 1e6
_LEAST_USED_SHARE: Final = 1e-4


class LengthPredictor:
    """One key's answers and what they say of the next; lengths are output tokens.

    A prediction is fixed x lean + share x `max_tokens` + doubt x prior. `trend` says how answers go with prompts and `centre`
    where the key's own lie; `lean` is what that makes of its mean. `trust` is how far the key itself is believed,
    `first` are a lane's first answers, and `stretch` what they make of every mean in it,
    `fixed` to `upper_share` are its own word, for the mean and for the reservation; the `all_` ones and `doubt`
    have the lower levels in them and are kept where there are few keys: every answer below changes them.
    """

    __slots__ = (
        "_due",
        "_fixed_error",
        "_log_mean",
        "_log_used",
        "_recent",
        "_share_error",
        "_used",
        "all_fixed",
        "all_share",
        "all_upper_fixed",
        "all_upper_share",
        "answers",
        "centre",
        "children",
        "doubt",
        "first",
        "fixed",
        "outputs",
        "parent",
        "share",
        "stretch",
        "trend",
        "trust",
        "upper_fixed",
        "upper_share",
    )

    def __init__(
        self,
        parent: Self | None,
        *,
        is_bounded: bool,
        trend: PromptTrend | None = None,
        first: FirstAnswers | None = None,
    ) -> None:
        self.parent = parent
        self.trend = trend or PromptTrend()
        self.centre = Centre(_MEMORY_ANSWERS)
        self.children: list[Self] = []
        self.first = first
        self.stretch = 1.0
        self.outputs = Sketch(1.0, _LONGEST_OUTPUT, memory=_MEMORY_ANSWERS)
        self._used = Sketch(_LEAST_USED_SHARE, 1.0, memory=_MEMORY_ANSWERS) if is_bounded else None
        self.answers = self._recent = self._due = 0
        self._log_mean = self._log_used = 0.0
        self._fixed_error = self._share_error = 0.0
        self.trust = self.fixed = self.share = self.upper_fixed = self.upper_share = 0.0
        self.all_fixed = self.all_share = self.all_upper_fixed = self.all_upper_share = 0.0
        self.doubt = 1.0

    def learn(
        self,
        prompt: float,
        output_tokens: int,
        max_tokens: int | None,
        teaches: PromptTrend | None = None,
    ) -> bool:
        """Learn from one answer; return whether the predictions have changed.

        `prompt` is the logarithm of its prompt's tokens; a tenant's key `teaches` its lane how answers go with prompts.
        """
        said = log(output_tokens)
        self.centre.add(prompt, said, teaches)
        self.answers += 1
        self._recent += 1
        self.outputs.add(output_tokens)
        if self._used is not None and max_tokens is not None:
            self._used.add(output_tokens / max_tokens)
            if self.answers > 1:
                self._judge(said, log(max_tokens))
        if self.answers < self._due:
            return False
        self._due = self.answers + min(self.answers // 16 + 1, _LONGEST_STALE_ANSWERS)
        self._read()
        return True

    def compose(self) -> None:
        """Put the prediction of the level below into this one's, and this one's into those above."""
        trust, below = self.trust, self.parent
        self.doubt = rest = 1.0 - trust
        self.all_fixed, self.all_share = trust * self.fixed, trust * self.share
        self.all_upper_fixed, self.all_upper_share = trust * self.upper_fixed, trust * self.upper_share
        if below is not None:
            self.all_fixed += rest * below.all_fixed
            self.all_share += rest * below.all_share
            self.all_upper_fixed += rest * below.all_upper_fixed
            self.all_upper_share += rest * below.all_upper_share
            self.doubt *= below.doubt
        for child in self.children:
            child.compose()

    def is_still_used(self) -> bool:
        """Return whether it has answered since it was last asked so, half of what it did before counting too."""
        self._recent //= 2
        return self._recent > 0

    def lean(self, prompt: float) -> float:
        """Return what `fixed` has to be multiplied by for a prompt with this logarithm."""
        lean = self.trend.lean(prompt, self.centre)
        return exp(lean) if lean else 1.0

    def look_at_first(self) -> None:
        """Read off its first answers how much too short a mean is; where answers are as long as allowed none is asked for."""
        if self.first is not None:
            stretch = self.first.stretch()
            self.stretch = 1.0 if self.share else stretch
            if self.first.is_over:
                self.first = None

    def _judge(self, said: float, allowed: float) -> None:
        """Compare one answer with what either predictor would have said; both arguments are logarithms."""
        weight = 1.0 / min(self.answers - 1, _CONTEST_ANSWERS)
        self._fixed_error += weight * (abs(said - self._log_mean) - self._fixed_error)
        self._share_error += weight * (abs(said - allowed - self._log_used) - self._share_error)

    def _read(self) -> None:
        """Take the readings: the word of the better predictor, and how far it is believed."""
        outputs, used = self.outputs, self._used
        mean = outputs.mean
        self._log_mean = log(mean)
        self.share = self.upper_share = 0.0
        self.fixed, self.upper_fixed = mean, outputs.quantile(_RESERVED_SHARE)
        if used is not None:
            self._log_used = log(used.mean)
            if self._share_error < _CLEARLY * self._fixed_error:
                self.fixed = self.upper_fixed = 0.0
                self.share, self.upper_share = used.mean, used.quantile(_RESERVED_SHARE)
        self.trust = self._credible()

    def _credible(self) -> float:
        """Return how far its word is believed; not at all until what lies below has heard of it."""
        below, samples = self.parent, self.outputs.samples
        if below is None:
            return samples / (samples + _PRIOR_ANSWERS)
        return samples / (samples + _BELOW_ANSWERS) if below.answers else 0.0

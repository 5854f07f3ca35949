"""What one key of the length hierarchy predicts: a usual length, or a usual part of `max_tokens`.

Two things can predict an answer's length: what such answers usually are, and what its client allows. Where clients
set `max_tokens` exactly (agents, classification, load tests) the answer is as long as that; where all of them send
4096 it says nothing. So a key keeps a sketch of the output and one of output / `max_tokens`, and predicts by the
one that varies less in logarithms.
"""

from math import exp, log
from typing import Final, Self

from millgate.core.measure.ewma import Ewma
from millgate.core.measure.sketch import Sketch
from millgate.core.sizing import FEW_ANSWERS, MEMORY_ANSWERS
from millgate.core.sizing.first_answers import FirstAnswers
from millgate.core.sizing.prompt_trend import Centre, PromptTrend

# The quantile that a reservation covers; what outgrows it is re-reserved as it streams.
_RESERVED_SHARE: Final = 0.95
# The part of `max_tokens` must vary this much less than the length: where both say the same, the choice must not flutter.
_CLEARLY: Final = 0.9
# The prior counts as so many answers. Of the hints of 16 streams whose lengths are known 95.7 % are kept with 0.25, all with 1.5
# (`sim run hints`, six seeds): otherwise the first answer decides what all others are taken for.
_PRIOR_ANSWERS: Final = 1.5
_LONGEST_OUTPUT: Final = 1e6
# What is read off the answers is read anew when so large a part of them is new: 0.5 us less for each request.
_NEW_SHARE: Final = 1.0 / 16.0


class LengthPredictor:
    """One key's answers and what they say of the next, mixed with what its `parent`, the level below, says.

    Lengths are output tokens. `trend` says how the answers of its lane go with prompts, `first` what the lane's first
    answers say of means. The level that `is_tenant` teaches the trend.
    """

    def __init__(
        self, parent: Self | None, trend: PromptTrend, first: FirstAnswers, *, is_tenant: bool = False
    ) -> None:
        self.parent = parent
        self.trend = trend
        self.first = first
        self._is_tenant = is_tenant
        self._centre = Centre()
        self._recent = self._unread = 0
        self._told: tuple[bool, float, float, float] | None = None
        self.outputs = Sketch(1.0, _LONGEST_OUTPUT, memory=MEMORY_ANSWERS)
        self._used = Sketch(memory=MEMORY_ANSWERS)
        self._lengths = Ewma(0.0, memory=MEMORY_ANSWERS, prior_samples=0.0)
        self._parts = Ewma(0.0, memory=MEMORY_ANSWERS, prior_samples=0.0)

    @property
    def follows_bound(self) -> bool:
        """Whether answers are a part of what `max_tokens` allows, rather than of a length of their own."""
        return self._parts.variance < _CLEARLY * self._lengths.variance and self._parts.samples > 0.0

    def learn(self, prompt: float, output_tokens: int, max_tokens: int | None) -> None:
        """Learn from one answer; `prompt` is the logarithm of its prompt's tokens."""
        said = log(output_tokens)
        self._recent += 1
        self._unread += 1
        self._centre.add(prompt, said, self.trend if self._is_tenant else None)
        self.outputs.add(output_tokens)
        self._lengths.add(said)
        if max_tokens is not None:
            self._used.add(output_tokens / max_tokens)
            self._parts.add(said - log(max_tokens))
        if self._unread >= _NEW_SHARE * self.outputs.samples:
            self._told = self._read()

    def foresee(
        self, prompt: float, stretch: float, allowed: int, prior: tuple[float, float]
    ) -> tuple[float, float]:
        """Return the expected and the reserved tokens of an answer, the `prior` ones if none is known on any level.

        `prompt` is as in `learn`, `stretch` multiplies means, and `allowed` is `max_tokens`, 0 for none.
        """
        below = self.parent
        expected, reserved = prior if below is None else below.foresee(prompt, stretch, allowed, prior)
        if self._told is None:
            return expected, reserved
        follows, trust, mean, upper = self._told
        scale = float(allowed) if follows else stretch * exp(self.trend.lean(prompt, self._centre))
        expected += trust * (scale * mean - expected)
        reserved += trust * (scale * upper - reserved)
        return expected, reserved

    def _read(self) -> tuple[bool, float, float, float]:
        """Return whether answers follow their bound, how far they are believed, their mean and what is reserved for one."""
        self._unread = 0
        follows, samples = self.follows_bound, self.outputs.samples
        known = self._used if follows else self.outputs
        trust = samples / (samples + (_PRIOR_ANSWERS if self.parent is None else FEW_ANSWERS))
        return follows, trust, known.mean, known.quantile(_RESERVED_SHARE)

    def is_still_used(self) -> bool:
        """Return whether it has answered since it was last asked so, half of what it did before counting too."""
        self._recent //= 2
        return self._recent > 0

"""How long will the answer be: learned from the answers to requests like it.

Keys form a hierarchy: (model, tenant, lane, log2 class of `max_tokens`), below it (model, tenant, lane), (model, lane),
(model), and at the bottom the prior min(`max_tokens`, 256). A key is believed the more the more answers it has had,
what lies below it by the rest. The tenant has a level of its own because setting `max_tokens` exactly is a habit of one
tenant's code. Requests without `max_tokens` have keys of their own on every level: the answers of the others are cut
off.
"""

from collections.abc import Iterable, Iterator
from math import exp, log
from typing import Final, Self

from millgate.core.measure import ALIKE, ENOUGH, MEMORY, PRIOR_OUTCOMES, Ewma, Sketch
from millgate.core.settings import TARGET_SHARE
from millgate.core.sizing import FEW_ANSWERS, MOST_NAMES, UNKNOWN_RATIO
from millgate.core.snapshot import ErrorReading


class EstimateError:
    """The errors of one kind of estimate, in total and one by one in logarithms: half and double weigh the same."""

    def __init__(self) -> None:
        self._actual = self._estimated = 0.0
        self._spread = Sketch(memory=MEMORY)

    def add(self, estimated: float, actual: float) -> None:
        """Compare one estimate with what came."""
        keep = 1.0 - 1.0 / MEMORY
        self._actual = self._actual * keep + actual
        self._estimated = self._estimated * keep + estimated
        self._spread.add(abs(log(actual / estimated)))

    def read(self) -> ErrorReading:
        """Return the errors of the last few hundred answers; zeros before the first."""
        bias = self._actual / self._estimated - 1.0 if self._estimated else 0.0
        return ErrorReading(self._spread.samples, bias, p90=self._spread.quantile(0.9))


# Fewer ends say nothing, and a few short answers that end first may say anything.
_LEAST_ENDED: Final = 3
_MOST_STRETCH: Final = 1.5


class FirstAnswers:
    """The answers of one lane and model since its first, most of which still run; lengths are output tokens.

    The mean of those that have ended is far too small at first: a third of the truth when most have not ended, 0.84 of it after
    five mean lives of lognormal ones (cv 1). It is multiplied by `stretch`, which makes of it (tokens of all, ended and
    running) / ended: the most likely mean of lives that end at any time alike (Epstein and Sobel, *Life testing*, JASA 1953).
    `has_news` says whether one has ended since the last look; when it `is_over`, the ended ones say enough.
    """

    def __init__(self) -> None:
        self._ended = self._tokens = self._running = self._running_tokens = 0
        self.has_news = self.is_over = False
        self.stretch = 1.0

    def ended(self, output_tokens: int) -> None:
        """Take note of a whole answer."""
        self._ended += 1
        self._tokens += output_tokens
        self.has_news = True

    def runs(self, output_tokens: int) -> None:
        """Take note, for the next look, of an answer that runs and is so long so far."""
        self._running += 1
        self._running_tokens += output_tokens

    def look(self) -> None:
        """Set `stretch` by the answers that run, and forget them."""
        running, running_tokens = self._running, self._running_tokens
        self._running = self._running_tokens = 0
        self.has_news = False
        # After enough ends for each that runs the mean of what has ended is a hundredth or two too short.
        self.is_over = self._ended >= ENOUGH * max(1, running)
        self.stretch = 1.0
        if not self.is_over and self._ended >= _LEAST_ENDED:
            self.stretch = min(_MOST_STRETCH, 1.0 + running_tokens / self._tokens)


# Of a normal law one in twenty lies more deviations off: so many standard errors of a slope are chance, and the line is
# followed up to so many deviations from the usual prompt, for beyond hardly anything was seen.
_DEVIATIONS: Final = 2.0
# An old answer's part in a slope weighs 1/e after so many. By 200, as for means, goodput is 1.4 points less where answers go with
# prompts by -0.5 (`unknown_lengths.py`, 12 runs): chance explains more of a short cloud.
_SLOPE_ANSWERS: Final = 1000.0


class Centre:
    """Where the prompts of one key lie: mean and variance of their logarithms; of a tenant the mean logarithm of its answers as well."""

    def __init__(self) -> None:
        self.prompts = Ewma(0.0, prior_samples=0.0)
        self._said = Ewma(0.0, prior_samples=0.0)

    def add(self, prompt: float, said: float, trend: "PromptTrend | None" = None) -> None:
        """Count one answer; a tenant's teaches `trend` how it lies to those before. Both are logarithms."""
        if trend is not None:
            before = self.prompts.samples
            if before:
                trend.learn(prompt - self.prompts.mean, said - self._said.mean, before / (before + 1.0))
            self._said.add(said)
        self.prompts.add(prompt)


class PromptTrend:
    """answer = mean answer x (prompt / usual prompt) ^ `slope`, of all tenants of a lane; 0 until more than chance is known.

    One slope for all is known from a few dozen answers, and says something of prompts of which none has been served yet. It is
    the slope within tenants, each having a mean of its own (analysis of covariance: Fisher, *Statistical Methods for Research
    Workers*, 1932). What chance alone explains is taken off (the non-negative garrote: Breiman, Technometrics 1995).
    """

    def __init__(self) -> None:
        self.slope = 0.0
        self._answers = self._xx = self._xy = self._yy = 0.0

    def learn(self, prompt: float, said: float, weight: float) -> None:
        """Learn from one answer by its distances from the means of its tenant; both are logarithms."""
        keep = 1.0 - 1.0 / _SLOPE_ANSWERS
        self._answers = self._answers * keep + weight
        self._xx = self._xx * keep + weight * prompt * prompt
        self._xy = self._xy * keep + weight * prompt * said
        self._yy = self._yy * keep + weight * said * said
        self.slope = self._beyond_chance()

    def lean(self, prompt: float, centre: Centre) -> float:
        """Return how far a usual answer to such a prompt lies above the mean answer of this key; all are logarithms.

        The mean of answers along a line is more than the answer in its middle: that of a lognormal law.
        """
        slope = self.slope
        if slope == 0.0:
            return 0.0
        prompts = centre.prompts
        # From where most prompts lie; no farther is the line followed.
        farthest = _DEVIATIONS * prompts.deviation
        off = min(max(-farthest, prompt - prompts.mean), farthest)
        return slope * (off - 0.5 * slope * prompts.variance)

    def _beyond_chance(self) -> float:
        xx, xy = self._xx, self._xy
        if self._answers < FEW_ANSWERS or xy == 0.0:
            return 0.0
        unexplained = max(0.0, self._yy - xy * xy / xx) / self._answers
        return xy / xx * max(0.0, 1.0 - _DEVIATIONS * _DEVIATIONS * unexplained * xx / (xy * xy))


_LONGEST_OUTPUT: Final = 1e6
# What is read off the answers is read anew when so large a part of them is new: 0.5 us less for each request.
_NEW_SHARE: Final = 1.0 / 16.0


class LengthPredictor:
    """One key's answers and what they say of the next, mixed with what its `parent`, the level below, says.

    Where clients set `max_tokens` exactly, answers are as long as that; where all send 4096 it says nothing. So a key
    keeps a sketch of the output and one of output / `max_tokens`, and predicts by the one that varies less in
    logarithms. Lengths are output tokens. `trend` says how the answers of its lane go with prompts, `first` what the
    lane's first answers say of means. The level that `is_tenant` teaches the trend.
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
        self.outputs = Sketch(1.0, _LONGEST_OUTPUT, memory=MEMORY)
        self._used = Sketch(memory=MEMORY)
        self._lengths = Ewma(0.0, prior_samples=0.0)
        self._parts = Ewma(0.0, prior_samples=0.0)

    @property
    def follows_bound(self) -> bool:
        """Whether answers are a part of what `max_tokens` allows, rather than of a length of their own."""
        return self._parts.variance < (1.0 - ALIKE) * self._lengths.variance and self._parts.samples > 0.0

    def learn(
        self, prompt: float, said: float, allowed: float, output_tokens: int, max_tokens: int | None
    ) -> None:
        """Learn from one answer; the first three are the logarithms of its prompt's tokens, of its own and of `max_tokens`."""
        self._recent += 1
        self._unread += 1
        self._centre.add(prompt, said, self.trend if self._is_tenant else None)
        self.outputs.add(output_tokens)
        self._lengths.add(said)
        if max_tokens is not None:
            self._used.add(output_tokens / max_tokens)
            self._parts.add(said - allowed)
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
        trust = samples / (samples + (PRIOR_OUTCOMES if self.parent is None else FEW_ANSWERS))
        return follows, trust, known.mean, known.quantile(TARGET_SHARE)

    def is_still_used(self) -> bool:
        """Return whether it has answered since it was last asked so, half of what it did before counting too."""
        self._recent //= 2
        return self._recent > 0


# Expected before anything has finished (design section 4, step 1). Twice as much is reserved: all of a generous `max_tokens`
# would run a few streams where sixteen fit.
PRIOR_OUTPUT_TOKENS: Final = 256


class OutputLength:
    """Expected and reserved output tokens of one answer, by what answers to such requests have been.

    `MOST_NAMES` bounds the models and the keys of the finest level. Beyond it new keys share their lane's, and after as
    many answers again the keys that were hardly used make room (lossy counting: Manku and Motwani, VLDB 2002).
    """

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str, str, int], LengthPredictor] = {}
        self._tenants: dict[tuple[str, str, str, bool], LengthPredictor] = {}
        self._lanes: dict[tuple[str, str, bool], LengthPredictor] = {}
        self._models: dict[tuple[str, bool], LengthPredictor] = {}
        # First answers of lanes that are not over.
        self._young: list[FirstAnswers] = []
        self._turned_away = 0
        self._error = EstimateError()

    def estimate(
        self,
        model: str,
        tenant: str,
        lane: str,
        max_tokens: int | None,
        prompt_tokens: int,
        min_tokens: int = 0,
    ) -> tuple[int, int]:
        """Return the expected output tokens of one answer and those to reserve KV memory for.

        Both are at least 1 and `min_tokens` (for `ignore_eos` the caller says that it is `max_tokens`), at most
        `max_tokens`; the reservation is at least the expectation. `max_tokens` 0 (embeddings, rerank) has no
        output: 0 and 0. Changes nothing.
        """
        if max_tokens == 0:
            return 0, 0
        likely, upper = float(PRIOR_OUTPUT_TOKENS), 2.0 * PRIOR_OUTPUT_TOKENS
        if max_tokens is not None:
            likely, upper = min(likely, max_tokens), min(upper, max_tokens)
        level = self._finest(model, tenant, lane, max_tokens)
        if level is not None:
            likely, upper = level.foresee(
                log(float(prompt_tokens or 1)), level.first.stretch, max_tokens or 0, (likely, upper)
            )
        expected, reserved = max(int(likely + 0.5) or 1, min_tokens), int(upper + 0.5)
        if max_tokens is not None:
            expected, reserved = min(expected, max_tokens), min(reserved, max_tokens)
        return expected, max(expected, reserved)

    def longest(self, model: str, tenant: str, lane: str, max_tokens: int | None) -> float:
        """Return the longest answer that is foreseen of such requests, so many times as long as any before; 0 before the first."""
        level = self._finest(model, tenant, lane, max_tokens)
        return 0.0 if level is None else UNKNOWN_RATIO * level.outputs.quantile(1.0)

    def learn(
        self,
        model: str,
        tenant: str,
        lane: str,
        max_tokens: int | None,
        prompt_tokens: int,
        output_tokens: int,
    ) -> None:
        """Learn from one whole answer; `prompt_tokens` are those that the estimate was asked with."""
        if output_tokens <= 0 or max_tokens == 0:
            return
        name = (model, tenant, lane, _class_of(max_tokens))
        level: LengthPredictor | None = self._keys.get(name) or self._new_key(name)
        if level is None:
            level = self._lane_of(model, lane, is_bounded=max_tokens is not None)
        level.first.ended(output_tokens)
        # Of a number of the machine: given an object, `log` is one, too.
        prompt, said, allowed = log(float(prompt_tokens or 1)), log(float(output_tokens)), 0.0
        if max_tokens is not None:
            allowed = log(float(max_tokens))
        while level is not None:
            level.learn(prompt, said, allowed, output_tokens, max_tokens)
            level = level.parent

    def erred(self, expected_tokens: float, output_tokens: int) -> None:
        """Compare what was expected of one answer when its request came with what it became."""
        if expected_tokens > 0.0 and output_tokens > 0:
            self._error.add(expected_tokens, output_tokens)

    @property
    def has_news(self) -> bool:
        """Whether one of a lane's first answers has ended since `look`."""
        return any(each.has_news for each in self._young)

    def look(self, running: Iterable[tuple[str, str, int | None, int]]) -> None:
        """Correct what the first answers say by those that run: their model, lane, `max_tokens` and length so far."""
        for model, lane, max_tokens, so_far in running:
            known = self._lanes.get((model, lane, max_tokens is not None))
            # Answers that are as long as allowed are known in advance, however long they have run.
            if known is not None and not known.follows_bound:
                known.first.runs(so_far)
        for each in self._young:
            each.look()
        self._young = [each for each in self._young if not each.is_over]

    def follows_bound(self, model: str, lane: str, max_tokens: int | None) -> bool:
        """Return whether the first answers of this lane have turned out to be as long as their bounds let them be."""
        known = self._lanes.get((model, lane, max_tokens is not None))
        return known is not None and not known.first.is_over and known.follows_bound

    def error(self) -> ErrorReading:
        """Return how wrong the expectations have been, lately and over all keys."""
        return self._error.read()

    def means(self) -> Iterator[tuple[str, float]]:
        """Yield every known model with its mean output tokens."""
        for model in dict.fromkeys(name for name, _ in self._models):
            both = [self._models.get((model, is_bounded)) for is_bounded in (False, True)]
            outputs = [key.outputs for key in both if key is not None]
            tokens = sum([each.samples * each.mean for each in outputs], 0.0)
            yield model, tokens / sum([each.samples for each in outputs], 0.0)

    def _finest(self, model: str, tenant: str, lane: str, max_tokens: int | None) -> LengthPredictor | None:
        """Return the finest level that is known of such requests."""
        is_bounded = max_tokens is not None
        return (
            self._keys.get((model, tenant, lane, _class_of(max_tokens)))
            or self._tenants.get((model, tenant, lane, is_bounded))
            or self._lanes.get((model, lane, is_bounded))
            or self._models.get((model, is_bounded))
            or self._models.get(("", is_bounded))
        )

    def _new_key(self, name: tuple[str, str, str, int]) -> LengthPredictor | None:
        """Return a fresh key, or None when the table is full of keys that are used."""
        if len(self._keys) >= MOST_NAMES:
            self._turned_away += 1
            if self._turned_away < MOST_NAMES:
                return None
            self._drop_idle()
            if len(self._keys) >= MOST_NAMES:
                return None
        model, tenant, lane, bound_class = name
        user = self._tenants.get((model, tenant, lane, bound_class > 0))
        if user is None:
            below = self._lane_of(model, lane, is_bounded=bound_class > 0)
            user = LengthPredictor(below, below.trend, below.first, is_tenant=True)
            self._tenants[model, tenant, lane, bound_class > 0] = user
        key = self._keys[name] = LengthPredictor(user, user.trend, user.first)
        return key

    def _drop_idle(self) -> None:
        """Drop the keys that were hardly used, and the tenants that have none left."""
        self._turned_away = 0
        self._keys = kept = {name: key for name, key in self._keys.items() if key.is_still_used()}
        users = {(model, tenant, lane, bound_class > 0) for model, tenant, lane, bound_class in kept}
        self._tenants = {name: user for name, user in self._tenants.items() if name in users}

    def _lane_of(self, model: str, lane: str, *, is_bounded: bool) -> LengthPredictor:
        if (model, is_bounded) not in self._models and len(self._models) >= MOST_NAMES:
            model = ""
        known = self._lanes.get((model, lane, is_bounded))
        if known is None:
            below = self._models.get((model, is_bounded))
            if below is None:
                below = self._models[model, is_bounded] = LengthPredictor(None, PromptTrend(), FirstAnswers())
            known = self._lanes[model, lane, is_bounded] = LengthPredictor(
                below, PromptTrend(), FirstAnswers()
            )
            self._young.append(known.first)
        return known


def _class_of(max_tokens: int | None) -> int:
    """Return the log2 class of a bound, 0 of none."""
    return 0 if max_tokens is None else max_tokens.bit_length()

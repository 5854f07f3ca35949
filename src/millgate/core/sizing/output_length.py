"""How long will the answer be: learned from the answers to requests like it.

Keys form a hierarchy: (model, tenant, lane, log2 class of `max_tokens`), below it
(model, tenant, lane), (model, lane), (model), and at the bottom the prior min(`max_tokens`, 256). Each predicts
as `length_predictor` says, moved along the trend of its lane (`prompt_trend`) and stretched by what its first answers that
still run say (`first_answers`), and is believed the more the more answers it has had, what lies below it by the rest.
The tenant has a level of its own because setting `max_tokens` exactly is a habit of one tenant's code.
Requests without `max_tokens` have keys of their own on every level: the answers of the others are cut off.
"""

from collections.abc import Iterable, Iterator
from math import log
from typing import Final

from millgate.core.sizing import MOST_NAMES
from millgate.core.sizing.estimate_error import EstimateError
from millgate.core.sizing.first_answers import FirstAnswers
from millgate.core.sizing.length_predictor import LengthPredictor
from millgate.core.sizing.prompt_trend import PromptTrend
from millgate.core.snapshot import ErrorReading

# Expected before anything has finished (design section 4, step 1). Twice as much is reserved: all of a generous `max_tokens`
# would run a few streams where sixteen fit.
PRIOR_OUTPUT_TOKENS: Final = 256


class OutputLength:
    """Expected and reserved output tokens of one answer, by what answers to such requests have been.

    `MOST_NAMES` bounds the models and the keys of the finest level. Beyond it new keys share their lane's, and after as
    many answers again the keys that were hardly used make room (lossy counting: Manku and Motwani, VLDB 2002).
    """

    __slots__ = ("_error", "_keys", "_lanes", "_models", "_tenants", "_turned_away", "_young")

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
                log(prompt_tokens or 1), level.first.stretch, max_tokens or 0, (likely, upper)
            )
        expected, reserved = max(int(likely + 0.5) or 1, min_tokens), int(upper + 0.5)
        if max_tokens is not None:
            expected, reserved = min(expected, max_tokens), min(reserved, max_tokens)
        return expected, max(expected, reserved)

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
        prompt = log(prompt_tokens or 1)
        while level is not None:
            level.learn(prompt, output_tokens, max_tokens)
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

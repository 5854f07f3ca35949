"""How long will the answer be: learned from the answers to requests like it.

Keys form a hierarchy: (model, tenant, lane, log2 class of `max_tokens`), below it
(model, tenant, lane), (model, lane), (model), and at the bottom the prior min(`max_tokens`, 256). Each predicts
as `length_predictor` says, moved along the trend of its lane (`prompt_trend`) and stretched by what its first answers that still run say
(`first_answers`), is believed the more the more answers it has had, and what lies below it by the rest.
The tenant has a level of its own because setting `max_tokens` exactly is a habit of one tenant's code.
Requests without `max_tokens` have keys of their own on every level: the answers of the others are cut off.
"""

from collections.abc import Iterable, Iterator
from math import log
from typing import Final

from millgate.core.sizing.estimate_error import EstimateError
from millgate.core.sizing.first_answers import FirstAnswers
from millgate.core.sizing.length_predictor import LengthPredictor
from millgate.core.sizing.prompt_bytes import MAX_MODELS
from millgate.core.snapshot import ErrorReading

# Expected output before anything has finished (design section 4, step 1).
PRIOR_OUTPUT_TOKENS: Final = 256
# What is reserved for an answer without `max_tokens` before anything is known.
_PRIOR_RESERVED_TOKENS: Final = 2 * PRIOR_OUTPUT_TOKENS
# Keys of the finest level (INV-5). Beyond them new ones share their lane's, and after as many answers again the
# keys that were hardly used make room (lossy counting: Manku and Motwani, VLDB 2002).
MAX_KEYS: Final = 500
# Every third answer is compared with its estimate: the errors are for people to read, and the third part is not
# in step with anything that comes in pairs.
_COMPARE_EVERY: Final = 3

# What is said of a model that has answered nobody: the prior and nothing else.
_NOTHING: Final = LengthPredictor(None, is_bounded=False)


class OutputLength:
    """Expected and reserved output tokens of one answer, by what answers to such requests have been."""

    __slots__ = ("_error", "_keys", "_lanes", "_learned", "_models", "_tenants", "_turned_away", "_young")

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str, str, int], LengthPredictor] = {}
        self._tenants: dict[tuple[str, str, str, bool], LengthPredictor] = {}
        self._lanes: dict[tuple[str, str, bool], LengthPredictor] = {}
        self._models: dict[tuple[str, bool], LengthPredictor] = {}
        # Lanes whose first answers are still looked at.
        self._young: list[LengthPredictor] = []
        self._learned = self._turned_away = 0
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
        key = self._keys.get((model, tenant, lane, _class_of(max_tokens)))
        is_bounded = max_tokens is not None
        user = self._tenants.get((model, tenant, lane, is_bounded)) if key is None else key.parent
        if user is None or (below := user.parent) is None:
            below = self._below(model, lane, is_bounded=is_bounded)
        return _predict(key, user, below, log(prompt_tokens or 1), max_tokens, min_tokens)

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
        is_bounded = max_tokens is not None
        name = (model, tenant, lane, _class_of(max_tokens))
        key = self._keys.get(name) or self._new_key(name, is_bounded=is_bounded)
        user = None if key is None else key.parent
        if user is None or (below := user.parent) is None:
            below = self._lane_of(model, lane, is_bounded=is_bounded)
        if below.first is not None:
            below.first.ended(output_tokens)
        self._learned += 1
        prompt = log(prompt_tokens or 1)
        if self._learned % _COMPARE_EVERY == 0:
            self._error.add(_predict(key, user, below, prompt, max_tokens, 0)[0], output_tokens)
        for level in (key, user):
            if level is not None:
                level.learn(prompt, output_tokens, max_tokens, below.trend if level is user else None)
        _learn_shared(below, prompt, output_tokens, max_tokens)

    @property
    def has_news(self) -> bool:
        """Whether one of a lane's first answers has ended since `look`."""
        return any(each.first is not None and each.first.has_news for each in self._young)

    def look(self, running: Iterable[tuple[str, str, int | None, int]]) -> None:
        """Correct what the first answers say by those that run: their model, lane, `max_tokens` and length so far."""
        for model, lane, max_tokens, so_far in running:
            first = self._below(model, lane, is_bounded=max_tokens is not None).first
            if first is not None:
                first.runs(so_far)
        for each in self._young:
            each.look_at_first()
        self._young = [each for each in self._young if each.first is not None]

    def follows_bound(self, model: str, lane: str, max_tokens: int | None) -> bool:
        """Return whether the first answers of this lane have turned out to be as long as their bounds let them be."""
        below = self._below(model, lane, is_bounded=max_tokens is not None)
        return below.first is not None and below.share > 0.0

    def error(self) -> ErrorReading:
        """Return how wrong the expectations have been, lately and over all keys."""
        return self._error.read()

    def means(self) -> Iterator[tuple[str, float]]:
        """Yield every known model with its mean output tokens."""
        for model in dict.fromkeys(name for name, _ in self._models):
            both = [self._models.get((model, is_bounded)) for is_bounded in (False, True)]
            outputs = [key.outputs for key in both if key is not None]
            yield (
                model,
                sum((each.samples * each.mean for each in outputs), 0.0)
                / sum(each.samples for each in outputs),
            )

    def _below(self, model: str, lane: str, *, is_bounded: bool) -> LengthPredictor:
        """Return the most that is known of a request without a key of its own."""
        return (
            self._lanes.get((model, lane, is_bounded))
            or self._models.get((model, is_bounded))
            or self._models.get(("", is_bounded))
            or _NOTHING
        )

    def _new_key(self, name: tuple[str, str, str, int], *, is_bounded: bool) -> LengthPredictor | None:
        """Return a fresh key, or None when the table is full of keys that are used."""
        if len(self._keys) >= MAX_KEYS:
            self._turned_away += 1
            if self._turned_away < MAX_KEYS:
                return None
            self._drop_idle()
            if len(self._keys) >= MAX_KEYS:
                return None
        model, tenant, lane, _ = name
        user = self._tenants.get((model, tenant, lane, is_bounded))
        if user is None:
            below = self._lane_of(model, lane, is_bounded=is_bounded)
            user = LengthPredictor(below, is_bounded=is_bounded, trend=below.trend)
            self._tenants[model, tenant, lane, is_bounded] = user
        key = self._keys[name] = LengthPredictor(user, is_bounded=is_bounded, trend=user.trend)
        return key

    def _drop_idle(self) -> None:
        """Drop the keys that were hardly used, and the tenants that have none left."""
        self._turned_away = 0
        self._keys = kept = {name: key for name, key in self._keys.items() if key.is_still_used()}
        users = {(model, tenant, lane, bound_class > 0) for model, tenant, lane, bound_class in kept}
        self._tenants = {name: user for name, user in self._tenants.items() if name in users}

    def _lane_of(self, model: str, lane: str, *, is_bounded: bool) -> LengthPredictor:
        if (model, is_bounded) not in self._models and len(self._models) >= MAX_MODELS:
            model = ""
        known = self._lanes.get((model, lane, is_bounded))
        if known is None:
            below = self._models.get((model, is_bounded))
            if below is None:
                below = self._models[model, is_bounded] = LengthPredictor(None, is_bounded=is_bounded)
            known = LengthPredictor(below, is_bounded=is_bounded, first=FirstAnswers())
            self._lanes[model, lane, is_bounded] = known
            self._young.append(known)
            below.children.append(known)
        return known


def _class_of(max_tokens: int | None) -> int:
    """Return the log2 class of a bound, 0 of none."""
    return 0 if max_tokens is None else max_tokens.bit_length()


def _predict(
    key: LengthPredictor | None,
    user: LengthPredictor | None,
    below: LengthPredictor,
    prompt: float,
    max_tokens: int | None,
    min_tokens: int,
) -> tuple[int, int]:
    """Return expected and reserved tokens within the bounds: the word of each level, the finest last."""
    if max_tokens is None:
        allowed, prior, prior_reserved = 0, PRIOR_OUTPUT_TOKENS, _PRIOR_RESERVED_TOKENS
    else:
        allowed = max_tokens
        prior = min(PRIOR_OUTPUT_TOKENS, max_tokens)
        # Reserving all of a generous bound at first would run a few streams where sixteen fit.
        prior_reserved = min(_PRIOR_RESERVED_TOKENS, max_tokens)
    lean = below.stretch * below.lean(prompt)
    likely = lean * below.all_fixed + below.all_share * allowed + below.doubt * prior
    upper = lean * below.all_upper_fixed + below.all_upper_share * allowed + below.doubt * prior_reserved
    for level in (user, key):
        if level is not None:
            trust, lean = level.trust, below.stretch * level.lean(prompt)
            likely += trust * (lean * level.fixed + level.share * allowed - likely)
            upper += trust * (lean * level.upper_fixed + level.upper_share * allowed - upper)
    expected, reserved = int(likely + 0.5) or 1, int(upper + 0.5)
    expected = max(expected, min_tokens)
    if max_tokens is not None:
        expected, reserved = min(expected, max_tokens), min(reserved, max_tokens)
    return expected, max(expected, reserved)


def _learn_shared(lane: LengthPredictor, prompt: float, output_tokens: int, max_tokens: int | None) -> None:
    """Teach a lane's key and its model's; a level that reads anew tells those above it."""
    below = lane.parent
    assert below is not None
    is_news = lane.learn(prompt, output_tokens, max_tokens)
    if below.learn(prompt, output_tokens, max_tokens):
        below.compose()
    elif is_news:
        lane.compose()

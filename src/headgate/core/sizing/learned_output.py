"""How long will the answer be: a running mean of actual output per model.

`max_tokens` is what a user allows, not what they get (most answers end long before it), so it bounds the
expectation and the KV reservation but does not make them.
"""

from collections.abc import Iterator

from headgate.core.measure.ewma import Ewma
from headgate.core.sizing.prompt_bytes import MAX_MODELS

# Expected output before anything has finished (design section 4, step 1).
PRIOR_OUTPUT_TOKENS = 256
# A reservation covers the mean and this many deviations: about 95 % of a roughly normal law; what outgrows it
# is re-reserved as it streams.
_RESERVED_DEVIATIONS = 2.0
# Below this many answers the spread is unknown, so the reservation is what the user allows.
_TRUSTED_SAMPLES = 10


class _Model:
    """One model's answers, and what follows from them for the next."""

    __slots__ = ("answers", "likely", "reserved")

    def __init__(self, first: int) -> None:
        self.answers = Ewma(float(first), memory=200.0, prior_samples=0.0)
        self.likely = first
        self.reserved: int | None = None

    def learn(self, output_tokens: int) -> None:
        answers = self.answers
        answers.add(float(output_tokens))
        self.likely = round(answers.mean) or 1
        if self.reserved is not None or answers.samples >= _TRUSTED_SAMPLES:
            self.reserved = round(answers.mean + _RESERVED_DEVIATIONS * answers.deviation) or 1


class LearnedOutput:
    """Expected and reserved output tokens, by model."""

    __slots__ = ("_models",)

    def __init__(self) -> None:
        self._models: dict[str, _Model] = {}

    def estimate(self, model: str, max_tokens: int | None) -> tuple[int, int]:
        """Return the expected output tokens of one answer and those to reserve KV memory for.

        Both are at least 1 and at most `max_tokens`; the reservation is at least the expectation.
        """
        known = self._models.get(model)
        likely, reserved = (PRIOR_OUTPUT_TOKENS, None) if known is None else (known.likely, known.reserved)
        if max_tokens is None:
            return likely, reserved or max(likely, 2 * PRIOR_OUTPUT_TOKENS)
        if reserved is None or reserved > max_tokens:
            reserved = max_tokens
        return min(max_tokens, likely), reserved

    def learn(self, model: str, output_tokens: int) -> None:
        """Learn from one whole answer."""
        if model not in self._models and len(self._models) >= MAX_MODELS:
            model = ""
        known = self._models.get(model)
        if known is None:
            known = self._models[model] = _Model(output_tokens)
        known.learn(output_tokens)

    def means(self) -> Iterator[tuple[str, float]]:
        """Yield every known model with its mean output tokens."""
        return ((model, known.answers.mean) for model, known in self._models.items())

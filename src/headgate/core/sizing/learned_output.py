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


class LearnedOutput:
    """Expected and reserved output tokens, by model."""

    __slots__ = ("_models",)

    def __init__(self) -> None:
        self._models: dict[str, Ewma] = {}

    def expected(self, model: str, max_tokens: int | None) -> int:
        """Return the expected output tokens of one answer, at least 1 and at most `max_tokens`."""
        known = self._models.get(model)
        if known is None:
            return max(1, min(max_tokens or PRIOR_OUTPUT_TOKENS, PRIOR_OUTPUT_TOKENS))
        mean = round(known.mean)
        return max(1, mean if max_tokens is None else min(mean, max_tokens))

    def reserved(self, model: str, max_tokens: int | None) -> int:
        """Return the output tokens to reserve KV memory for, at least the expectation."""
        known = self._models.get(model)
        if known is None or known.samples < _TRUSTED_SAMPLES:
            return max_tokens or 2 * PRIOR_OUTPUT_TOKENS
        likely = round(known.mean + _RESERVED_DEVIATIONS * known.deviation)
        return max(1, likely if max_tokens is None else min(likely, max_tokens))

    def learn(self, model: str, output_tokens: int) -> None:
        """Learn from one whole answer."""
        if model not in self._models and len(self._models) >= MAX_MODELS:
            model = ""
        known = self._models.get(model)
        if known is None:
            known = self._models[model] = Ewma(float(output_tokens), memory=200.0, prior_samples=0.0)
        known.add(float(output_tokens))

    def means(self) -> Iterator[tuple[str, float]]:
        """Yield every known model with its mean output tokens."""
        return ((model, known.mean) for model, known in self._models.items())

"""Prompt tokens from bytes: a ratio per model, learned from the usage that engines report.

Counting bytes needs no tokeniser; the ratio of a model and its users is stable (English prose is near 4 bytes a token,
code and CJK lie lower) and JSON overhead is learned with it. Tokens that do not come from text bytes (the parts of an
image, of a recording) are counted by the caller.
"""

from collections.abc import Iterator
from typing import Final

from millgate.core.sizing import MOST_NAMES
from millgate.core.sizing.estimate_error import EstimateError
from millgate.core.snapshot import ErrorReading

# Bytes a token before anything is known: the common rule of thumb for English text.
PRIOR_BYTES_PER_TOKEN: Final = 4.0
# The prior counts as this many tokens: more than a first greeting has, less than a first real prompt.
_PRIOR_TOKENS: Final = 200.0
# Ratios forget with this half-life in tokens: a change of traffic shows within a few hundred prompts, and pings by the
# hundred, each with more template than text, change nothing for the prompts of others.
_HALF_LIFE_TOKENS: Final = 500_000.0


class PromptBytes:
    """How many tokens a prompt has, by its bytes and its model; beyond `MOST_NAMES` new models share one ratio."""

    __slots__ = ("_error", "_sums")

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}
        self._error = EstimateError()

    def tokens(self, model: str, prompt_bytes: int, fixed_tokens: int = 0) -> int:
        """Return the estimated prompt tokens, at least 1; `prompt_bytes` is text, `fixed_tokens` comes on top."""
        sums = self._sums.get(model) or self._sums.get("")
        ratio = sums[0] / sums[1] if sums else PRIOR_BYTES_PER_TOKEN
        return fixed_tokens + round(prompt_bytes / ratio) or 1

    def learn(self, model: str, prompt_bytes: int, prompt_tokens: int, fixed_tokens: int = 0) -> None:
        """Learn from one answer's usage; `prompt_tokens` is the whole, `fixed_tokens` as they were estimated."""
        if prompt_tokens <= 0 or prompt_bytes <= 0:
            return
        self._error.add(self.tokens(model, prompt_bytes, fixed_tokens), prompt_tokens)
        text_tokens = prompt_tokens - fixed_tokens
        if text_tokens <= 0:
            return
        if model not in self._sums and len(self._sums) >= MOST_NAMES:
            model = ""
        sums = self._sums.setdefault(model, [_PRIOR_TOKENS * PRIOR_BYTES_PER_TOKEN, _PRIOR_TOKENS])
        if sums[1] > _HALF_LIFE_TOKENS:
            sums[0] *= 0.5
            sums[1] *= 0.5
        sums[0] += prompt_bytes
        sums[1] += text_tokens

    def ratios(self) -> Iterator[tuple[str, float]]:
        """Yield every known model with its bytes per token."""
        return ((model, sums[0] / sums[1]) for model, sums in self._sums.items())

    def error(self) -> ErrorReading:
        """Return how wrong the estimates have been, lately and over all models."""
        return self._error.read()

"""Prompt tokens from bytes: a ratio per model, learned from the usage that engines report.

Counting bytes costs nothing and needs no tokeniser to download; the ratio of a model and its users is stable
(English prose is near 4 bytes a token, code and CJK lie lower) and JSON overhead is learned with it. Tokens that
do not come from text bytes (the parts of an image, of a recording) are counted apart, by whoever knows the parts.
"""

from collections.abc import Iterator
from typing import Final

from millgate.core.sizing import MEMORY_ANSWERS, MOST_NAMES
from millgate.core.sizing.estimate_error import EstimateError
from millgate.core.snapshot import ErrorReading

# Bytes a token before anything is known: the common rule of thumb for English text.
PRIOR_BYTES_PER_TOKEN: Final = 4.0


class PromptBytes:
    """How many tokens a prompt has, by its bytes and its model; beyond `MOST_NAMES` new models share one ratio."""

    __slots__ = ("_error", "_sums")

    def __init__(self) -> None:
        # Bytes and tokens of the last answers, by model.
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
        sums = self._sums.setdefault(model, [0.0, 0.0])
        keep = 1.0 - 1.0 / MEMORY_ANSWERS
        sums[0] = sums[0] * keep + prompt_bytes
        sums[1] = sums[1] * keep + text_tokens

    def ratios(self) -> Iterator[tuple[str, float]]:
        """Yield every known model with its bytes per token."""
        return ((model, sums[0] / sums[1]) for model, sums in self._sums.items())

    def error(self) -> ErrorReading:
        """Return how wrong the estimates have been, lately and over all models."""
        return self._error.read()

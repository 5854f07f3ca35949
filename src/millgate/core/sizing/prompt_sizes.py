"""Prompt tokens before anything is tokenised: by what a prompt is made of, or where only its length is known by a ratio.

Doors that see the text tell its shape, and each model has a line over it (`prompt_line`). Of other arrivals only bytes are known:
the ratio of a model and its users is stable (English prose is near 4 bytes a token, code and CJK lie lower) and JSON overhead is
learned with it. Tokens that do not come from text (the parts of an image, of a recording) are counted by the caller.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from millgate.core.events import PromptShape
from millgate.core.sizing import MOST_NAMES
from millgate.core.sizing.estimate_error import EstimateError
from millgate.core.sizing.prompt_line import PromptLine
from millgate.core.snapshot import ErrorReading

# Bytes a token before anything is known: the common rule of thumb for English text.
PRIOR_BYTES_PER_TOKEN: Final = 4.0
# The prior counts as this many tokens: more than a first greeting has, less than a first real prompt.
_PRIOR_TOKENS: Final = 200.0
# Ratios forget with this half-life in tokens: a change of traffic shows within a few hundred prompts, and pings by the
# hundred, each with more template than text, change nothing for the prompts of others.
_HALF_LIFE_TOKENS: Final = 500_000.0
# A line takes 4 kB: beyond so many, which is more than a fleet serves, new models share one.
_MOST_LINES: Final = 64
_UNTAUGHT: Final = PromptLine()


class PromptSizes:
    """How many tokens a prompt has, by its model; beyond a bound new models share one estimate."""

    __slots__ = ("_error", "_lines", "_sums")

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}
        self._lines: dict[str, PromptLine] = {}
        self._error = EstimateError()

    def tokens(
        self, model: str, prompt_bytes: int, fixed_tokens: int = 0, shape: PromptShape | None = None
    ) -> int:
        """Return the estimated prompt tokens, at least 1; `prompt_bytes` is text, `fixed_tokens` are beside it."""
        if shape is not None:
            line = self._lines.get(model) or self._lines.get("") or _UNTAUGHT
            return line.tokens(shape, fixed_tokens)
        sums = self._sums.get(model) or self._sums.get("")
        ratio = sums[0] / sums[1] if sums else PRIOR_BYTES_PER_TOKEN
        return fixed_tokens + round(prompt_bytes / ratio) or 1

    def learn(
        self,
        model: str,
        prompt_bytes: int,
        prompt_tokens: int,
        fixed_tokens: int = 0,
        shape: PromptShape | None = None,
    ) -> None:
        """Learn from one answer's usage; `prompt_tokens` is the whole, `fixed_tokens` as they were estimated."""
        if prompt_tokens <= 0 or prompt_bytes <= 0:
            return
        self._error.add(self.tokens(model, prompt_bytes, fixed_tokens, shape), prompt_tokens)
        self._learn_ratio(model, prompt_bytes, prompt_tokens - fixed_tokens)
        if shape is not None:
            name = _bounded(model, self._lines, _MOST_LINES)
            line = self._lines.get(name)
            if line is None:
                line = self._lines[name] = PromptLine()
            line.learn(shape, fixed_tokens, prompt_tokens)

    def ratios(self) -> Iterator[tuple[str, float]]:
        """Yield every known model with its bytes per token."""
        return ((model, sums[0] / sums[1]) for model, sums in self._sums.items())

    def error(self) -> ErrorReading:
        """Return how wrong the estimates have been, lately and over all models."""
        return self._error.read()

    def _learn_ratio(self, model: str, prompt_bytes: int, text_tokens: int) -> None:
        if text_tokens <= 0:
            return
        name = _bounded(model, self._sums, MOST_NAMES)
        sums = self._sums.setdefault(name, [_PRIOR_TOKENS * PRIOR_BYTES_PER_TOKEN, _PRIOR_TOKENS])
        if sums[1] > _HALF_LIFE_TOKENS:
            sums[0] *= 0.5
            sums[1] *= 0.5
        sums[0] += prompt_bytes
        sums[1] += text_tokens


def _bounded(model: str, known: Mapping[str, object], most: int) -> str:
    """Return the name under which this model is known or may become so."""
    return "" if model not in known and len(known) >= most else model

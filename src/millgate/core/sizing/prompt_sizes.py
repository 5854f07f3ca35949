"""Prompt tokens before anything is tokenised: by what a prompt is made of, or where only its length is known by a ratio.

Doors that see the text tell its shape, and each model has a line over it, learned from the usage that engines report:

    tokens = own + a x messages + b x bytes of tools + c x letters + d x spaces + e x digits + f x signs + g x bytes beyond ASCII
             + h x tokens of what is no text

Of other arrivals only bytes are known: the ratio of a model and its users is stable (English prose is near 4 bytes a token, code
and CJK lie lower). Tokens that do not come from text (the parts of an image, of a recording) are counted by the caller.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from millgate.core.events import PromptShape
from millgate.core.sizing import MOST_NAMES
from millgate.core.sizing.output_length import EstimateError
from millgate.core.snapshot import ErrorReading

# Tokens per unit before anything is known, and how far each may be off: English prose has four letters a token. A message of
# JSON has some twenty letters and signs that no template writes.
_PRIOR: Final[tuple[float, ...]] = (5.0, -4.0, 0.25, 0.2, 0.1, 0.4, 0.4, 0.5, 1.0)
_DOUBT: Final[tuple[float, ...]] = (20.0, 8.0, 0.1, 0.1, 0.4, 0.3, 0.4, 0.3, 0.7)
_TERMS: Final = len(_PRIOR)
# What an estimate is off by: a share of the prompt, and so many tokens.
_NOISE_SHARE: Final = 0.1
_NOISE_TOKENS: Final = 10.0
_MOST_DEVIATIONS: Final = 3.0
# Each answer gives back this part of the prior's variance: what is known is that of some hundred answers.
_FADE: Final = 1e-4
# A token in a kilobyte at least, whatever the line says of a text like none before; lines of dashes have one in a hundred bytes.
_LEAST_TOKENS_SHIFT: Final = 10


class PromptLine:
    """The coefficients of one model, and what is in doubt of them: recursive least squares (Plackett, 1950).

    What is off is taken to be a tenth of the prompt, so that short prompts teach as much as long ones, and a prompt that is off
    by more than three of that teaches no more than one that is off by three (Huber, 1964). What is known of each coefficient
    fades slowly, never beyond the prior's doubt.
    """

    __slots__ = ("_covariance", "_weights")

    def __init__(self) -> None:
        self._weights = list(_PRIOR)
        self._covariance = [
            [doubt * doubt if row == column else 0.0 for column in range(_TERMS)]
            for row, doubt in enumerate(_DOUBT)
        ]

    def tokens(self, shape: PromptShape, fixed_tokens: int) -> int:
        """Return the estimated prompt tokens, at least one in 1,024 bytes."""
        least = (sum(shape) >> _LEAST_TOKENS_SHIFT) + 1
        return max(least, round(self._expected(_terms(shape, fixed_tokens))))

    def learn(self, shape: PromptShape, fixed_tokens: int, prompt_tokens: int) -> None:
        """Learn from one answer's usage."""
        terms = _terms(shape, fixed_tokens)
        share = _NOISE_SHARE * prompt_tokens
        doubts = [_dot(row, terms) for row in self._covariance]
        variance = share * share + _NOISE_TOKENS * _NOISE_TOKENS + _dot(doubts, terms)
        off = prompt_tokens - self._expected(terms)
        most = _MOST_DEVIATIONS * variance**0.5
        step = max(-most, min(most, off)) / variance
        for row in range(_TERMS):
            self._weights[row] += doubts[row] * step
            self._reduce(row, doubts, variance)

    def _expected(self, terms: list[float]) -> float:
        return _dot(self._weights, terms)

    def _reduce(self, row: int, doubts: list[float], variance: float) -> None:
        """Take what was learned off one row of the covariance, and let what is known of its coefficient fade."""
        values, part = self._covariance[row], doubts[row] / variance
        for column in range(_TERMS):
            values[column] -= part * doubts[column]
        prior = _DOUBT[row] * _DOUBT[row]
        values[row] = min(max(prior, values[row]), values[row] + _FADE * prior)


def _terms(shape: PromptShape, fixed_tokens: int) -> list[float]:
    return [1.0, *[float(count) for count in shape], float(fixed_tokens)]


def _dot(left: list[float], right: list[float]) -> float:
    total = 0.0
    for index in range(_TERMS):
        total += left[index] * right[index]
    return total


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

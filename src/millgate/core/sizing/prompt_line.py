"""Prompt tokens from what a prompt is made of: a linear estimate per model, learned from the usage that engines report.

    tokens = own + a x messages + b x bytes of tools + c x letters + d x spaces + e x digits + f x signs + g x bytes beyond ASCII
             + h x tokens of what is no text

Recursive least squares (Plackett, 1950): each answer moves the coefficients by as much as they are in doubt. What is off is
taken to be a tenth of the prompt, so that short prompts teach as much as long ones, and a prompt that is off by more than
three of that teaches no more than one that is off by three (Huber, 1964). Coefficients drift: what is known of each fades
slowly, never beyond the prior's doubt.
"""

from typing import Final

from millgate.core.events import PromptShape

# Tokens per unit before anything is known, and how far each may be off: English prose has four letters a token. A message of
# JSON has some twenty letters and signs that no template writes.
_PRIOR: Final[tuple[float, ...]] = (5.0, -4.0, 0.25, 0.2, 0.1, 0.4, 0.4, 0.5, 1.0)
_DOUBT: Final[tuple[float, ...]] = (20.0, 8.0, 0.1, 0.1, 0.4, 0.3, 0.4, 0.3, 0.7)
_TERMS: Final = 9
# What an estimate is off by: a share of the prompt, and so many tokens.
_NOISE_SHARE: Final = 0.1
_NOISE_TOKENS: Final = 10.0
_MOST_DEVIATIONS: Final = 3.0
# Each answer gives back this part of the prior's variance: what is known is that of some hundred answers.
_FADE: Final = 1e-4
# A token in a kilobyte at least, whatever the line says of a text like none before; lines of dashes have one in a hundred bytes.
_LEAST_TOKENS_SHIFT: Final = 10


class PromptLine:
    """The coefficients of one model, and what is in doubt of them."""

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

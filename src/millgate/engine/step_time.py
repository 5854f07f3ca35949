"""How long one engine step takes: the contract of a step-time model, and the model with seven coefficients.

An engine works in steps. A step gives every decoding sequence one token and may prefill chunks of prompts
beside them; weights are read once for all, so decodes ride along with a compute-bound chunk. What a step costs
depends on how many sequences decode, how many tokens their KV caches hold together, and on the chunks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple, Protocol


class PromptChunk(NamedTuple):
    """Prompt tokens prefilled in one step: `tokens` new ones behind `offset` tokens that are already there."""

    offset: int
    tokens: int


class StepModel(Protocol):
    """What `Batch` asks: seconds of one step with chunks, and of many successive steps without."""

    def step_s(self, decodes: int, kv_tokens: int, chunks: Sequence[PromptChunk]) -> float:
        """Seconds of one step: `decodes` sequences with `kv_tokens` cached tokens together, and the chunks."""

    def decode_steps_s(self, decodes: int, kv_tokens: int, steps: int) -> float:
        """Seconds of `steps` successive steps without chunks; the cache grows by `decodes` tokens a step.

        Strictly increasing in `steps`, and 0 for no steps.
        """

    def decode_steps_within(self, decodes: int, kv_tokens: int, elapsed_s: float) -> int:
        """Return the largest number of such steps that end within `elapsed_s`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CoefficientModel:
    """The step-time model with seven coefficients and a host overhead, all in seconds.

    - prefill alone: max(floor, base + per_token x n + per_token_squared x ((s + n)^2 - s^2))
    - decode alone: decode_base + per_sequence x B + per_kv_token x KV
    - both: max(floor, decode_base + per_sequence x B, base + per_token x (n + B)) + the square term + the KV
      term. The usual form leaves per_sequence out of the maximum; with it a chunk never makes a step faster.

    Every step costs `overhead` more. The sum over many decode steps is an arithmetic series, its inverse the
    root of a quadratic.
    """

    floor_s: float
    base_s: float
    per_token_s: float
    per_token_squared_s: float
    decode_base_s: float
    per_sequence_s: float
    per_kv_token_s: float
    overhead_s: float

    def step_s(self, decodes: int, kv_tokens: int, chunks: Sequence[PromptChunk]) -> float:
        """Seconds of one step, see `StepModel`."""
        tokens = 0
        squares = 0
        for offset, new in chunks:
            tokens += new
            squares += new * (offset + offset + new)
        attention = self.per_token_squared_s * squares
        compute = self.base_s + self.per_token_s * (tokens + decodes)
        if decodes == 0:
            return max(self.floor_s, compute + attention) + self.overhead_s
        weights = self.decode_base_s + self.per_sequence_s * decodes
        slowest = max(self.floor_s, weights, compute)
        return slowest + attention + self.per_kv_token_s * kv_tokens + self.overhead_s

    def decode_steps_s(self, decodes: int, kv_tokens: int, steps: int) -> float:
        """Seconds of `steps` decode steps as an arithmetic series, see `StepModel`."""
        return _series(steps, self._decode_s(decodes, kv_tokens), self.per_kv_token_s * decodes)

    def decode_steps_within(self, decodes: int, kv_tokens: int, elapsed_s: float) -> int:
        """Decode steps that end within `elapsed_s`: the root of the series, put right for rounding."""
        first = self._decode_s(decodes, kv_tokens)
        growth = self.per_kv_token_s * decodes
        # growth/2 x^2 + (first - growth/2) x = elapsed; this form of the root stays right where growth is 0.
        linear = first - growth / 2
        steps = int(2 * elapsed_s / (linear + sqrt(linear * linear + 2 * growth * elapsed_s)))
        while steps > 0 and _series(steps, first, growth) > elapsed_s:
            steps -= 1
        while _series(steps + 1, first, growth) <= elapsed_s:
            steps += 1
        return steps

    def _decode_s(self, decodes: int, kv_tokens: int) -> float:
        weights = self.decode_base_s + self.per_sequence_s * decodes
        return weights + self.per_kv_token_s * kv_tokens + self.overhead_s


def _series(steps: int, first_s: float, growth_s: float) -> float:
    """Sum `steps` terms that begin with `first_s` and grow by `growth_s`."""
    return steps * first_s + growth_s * (steps * (steps - 1) // 2)

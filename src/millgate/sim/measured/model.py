"""A step-time model made of measured kernels: dense layers, attention, head and sampler, each from its table.

A step costs `layers` x (dense layers at the tokens of the step + attention) + what runs once (embedding, last norm,
head, sampler) + the all-reduces of tensor parallelism + a host overhead. Nothing is fitted but, if asked for, that
overhead.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from millgate.engine.step_time import PromptChunk
from millgate.sim.measured.collectives import AllReduce
from millgate.sim.measured.tables import Attention, Grid

# Layers that run once a step; everything else in the dense table runs in every transformer layer.
_ONCE = frozenset({"embedding", "final_layernorm", "final_norm", "lm_head", "sampler"})
# A transformer layer has two norms of this name: before attention and before the feed-forward part.
_TWICE = frozenset({"layernorm", "rmsnorm"})


# What one of several devices does whole: norms, the sampler, and its rows of the embedding.
_WHOLE = _TWICE | _ONCE - {"lm_head"}
# Products of matrices take as long as reading or multiplying their part of the weights; a smaller kernel has a launch that stays.
_PRODUCTS = ("_proj", "lm_head")


def divided(layers: Mapping[str, Grid], parts: int) -> dict[str, Grid]:
    """Return the layers of one of so many devices, where those of a single one were measured."""
    return {
        name: grid if name in _WHOLE else grid.divided(parts, 0.0 if name.endswith(_PRODUCTS) else grid.least)
        for name, grid in layers.items()
    }


class KernelModel:
    """Implements `engine.step_time.StepModel` from measured tables; seconds."""

    def __init__(
        self,
        dense: Mapping[str, Grid],
        per_sequence: Mapping[str, Grid],
        attention: Attention,
        layers: int,
        overhead_s: float = 0.0,
        all_reduce: AllReduce | None = None,
    ) -> None:
        self._tables = (dense, per_sequence)
        self._all_reduce = all_reduce
        self._dense = [
            (grid, 1 if name in _ONCE else layers * (2 if name in _TWICE else 1))
            for name, grid in dense.items()
        ]
        self._per_sequence = list(per_sequence.values())
        self._attention = attention
        self._layers = layers
        self._overhead_s = overhead_s
        self._dense_s: dict[int, float] = {}
        self._batch = (0, 0)
        self._ends: list[float] = []

    def with_overhead(self, overhead_s: float) -> "KernelModel":
        """Return the same model with this host overhead on every step."""
        whole_s = self._overhead_s + overhead_s
        return KernelModel(*self._tables, self._attention, self._layers, whole_s, self._all_reduce)

    def step_s(self, decodes: int, kv_tokens: int, chunks: Sequence[PromptChunk]) -> float:
        """Seconds of one step with chunks."""
        tokens = decodes + sum(chunk.tokens for chunk in chunks)
        context = kv_tokens / decodes if decodes else 0.0
        attention_s = self._attention.step_s(chunks, decodes, context)
        return self._fixed_s(tokens, decodes + len(chunks)) + self._layers * attention_s

    def decode_steps_s(self, decodes: int, kv_tokens: int, steps: int) -> float:
        """Seconds of successive decode steps, summed one by one and kept for the batch that asks again."""
        if steps == 0:
            return 0.0
        self._reach(decodes, kv_tokens, steps)
        return self._ends[steps - 1]

    def decode_steps_within(self, decodes: int, kv_tokens: int, elapsed_s: float) -> int:
        """Return how many such steps end within this time."""
        steps = 1
        self._reach(decodes, kv_tokens, steps)
        while self._ends[-1] <= elapsed_s:
            steps = 2 * len(self._ends)
            self._reach(decodes, kv_tokens, steps)
        return bisect_right(self._ends, elapsed_s)

    def _reach(self, decodes: int, kv_tokens: int, steps: int) -> None:
        if self._batch != (decodes, kv_tokens):
            self._batch = (decodes, kv_tokens)
            self._ends = []
        ends = self._ends
        fixed_s = self._fixed_s(decodes, decodes)
        end = ends[-1] if ends else 0.0
        for step in range(len(ends), steps):
            context = kv_tokens / decodes + step
            end += fixed_s + self._layers * self._attention.decodes_s(decodes, context)
            ends.append(end)

    def _fixed_s(self, tokens: int, sequences: int) -> float:
        """Everything but attention."""
        seconds = self._dense_s.get(tokens)
        if seconds is None:
            seconds = sum(times * grid.at(tokens) for grid, times in self._dense)
            if self._all_reduce is not None:
                seconds += self._all_reduce.step_s(tokens)
            self._dense_s[tokens] = seconds
        return seconds + sum(grid.at(sequences) for grid in self._per_sequence) + self._overhead_s

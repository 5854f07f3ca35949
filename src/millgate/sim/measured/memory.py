"""How many tokens fit into an engine's KV cache, where its record does not say: a rule, with its error.

Per device: tokens = (memory x share - what vLLM keeps - weights / devices) / KV bytes of a token; of KV heads each
device has its part and one at least. Against eight of vLLM's own counts the rule is off by -3 to +1.5 %
(docs/simulator.md). It is as right as the memory and the share that it is told. With a tenth of the tokens more or less
a run that is short of memory is quite another.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, NamedTuple

from millgate.sim.measured.record import Served
from millgate.sim.measured.tables import MeasuredError

# What vLLM keeps on each device for activations, sampling and the driver at a budget of some 2,048 tokens: measured as 1.6 GiB
# on an RTX 4090, where 2,588 blocks of 16 tokens remain beside Llama-3.1-8B.
_KEPT_BYTES = 1.6 * 2**30
_WEIGHT_BYTES = 2
# The share that vLLM takes where a record does not say.
_SHARE = 0.9
# Preempted requests hold nothing for a while, which cannot be seen: a little more than computed proves nothing.
_SURELY_MORE = 1.3
_MOMENTS = 200


def usable_bytes(device_bytes: float, share: float | None, described: float | None) -> float:
    """Return what weights and KV cache may take of one device.

    `share` is what the engine was told to take, what it keeps included; `described` what a description of the device
    says is left for weights and KV cache (LLMServingSim's `mem_util`; commonly vLLM's share, copied).
    """
    taken = share or max(_SHARE, described or 0.0)
    left = device_bytes * taken - _KEPT_BYTES
    return left if described is None else min(left, device_bytes * described)


class Architecture(NamedTuple):
    """One model's shape."""

    layers: int
    kv_heads: int = 0
    head_size: int = 0
    parameters: float = 0.0
    hidden_size: int = 0

    def kv_bytes_of_part(self, parts: int) -> float:
        """Bytes of a token's KV cache on one of so many devices at two bytes a number, one head at least; 0 when heads are not known."""
        heads = max(1.0, self.kv_heads / parts) if self.kv_heads else 0.0
        return 2 * self.layers * heads * self.head_size * 2


@cache
def _known() -> Mapping[str, Architecture]:
    """Read the shapes that ship with the package, by what is in a model's name."""
    text = files("millgate.sim.measured").joinpath("architectures.json").read_text(encoding="utf-8")
    return {name: Architecture(**shape) for name, shape in json.loads(text).items()}


_DESCRIBED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "layers": ("num_hidden_layers", "num_layers", "layers"),
        "kv_heads": ("num_key_value_heads",),
        "head_size": ("head_dim",),
        "hidden_size": ("hidden_size",),
        "parameters": ("parameters",),
    }
)


def find_architecture(model: str, described: Mapping[str, Any]) -> Architecture:
    """Return a model's shape: as described by the run itself, else as published for the longest name that fits."""
    name = model.lower()
    fitting = [known for known in _known() if known in name]
    own = {
        field: described[key]
        for field, keys in _DESCRIBED.items()
        for key in keys
        if isinstance(described.get(key), int | float) and not isinstance(described[key], bool)
    }
    if fitting:
        return _known()[max(fitting, key=len)]._replace(**own)
    if "layers" not in own:
        raise MeasuredError(
            f"model_name: {model!r} is not known: give num_hidden_layers in the configuration, or one of"
            f" {', '.join(_known())}"
        )
    return Architecture(**own)


def computed_tokens(architecture: Architecture, usable: float, parts: int) -> int:
    """Return the tokens that fit beside the weights, with so many usable bytes on each of so many devices; 0 where none do."""
    left = usable - architecture.parameters * _WEIGHT_BYTES / parts
    return max(0, int(left / architecture.kv_bytes_of_part(parts)))


def believed_tokens(computed: int, served: Sequence[Served], sequences: int) -> int:
    """Return what is computed, or what the run visibly held where that is far more."""
    held = _most_held(served, sequences)
    return held if held > _SURELY_MORE * computed else computed


def _most_held(served: Sequence[Served], sequences: int) -> int:
    """Return how many tokens the engine held at once at most, by what was measured; answers grow evenly.

    Of those that have their first token and not their last; at most as many as run together.
    """
    most = 0.0
    for moment in served[:: max(1, len(served) // _MOMENTS)]:
        now = moment.last_token_s
        running = [row for row in served if row.first_token_s <= now <= row.last_token_s][:sequences]
        held = sum(
            row.prompt_tokens
            + row.output_tokens * (now - row.first_token_s) / max(1e-9, row.last_token_s - row.first_token_s)
            for row in running
        )
        most = max(most, held)
    return int(most)

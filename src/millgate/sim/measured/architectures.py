"""The few numbers of public models that kernel tables do not hold: layers, KV heads, head size, parameters, hidden size.

From the models' published configurations (num_hidden_layers, num_key_value_heads, head_dim, hidden_size) and cards.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from millgate.sim.measured.tables import MeasuredError


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


_KNOWN: Mapping[str, Architecture] = MappingProxyType(
    {
        "llama-3.1-8b": Architecture(32, 8, 128, 8.03e9, 4096),
        "llama-3-8b": Architecture(32, 8, 128, 8.03e9, 4096),
        "llama-3.1-70b": Architecture(80, 8, 128, 70.6e9, 8192),
        "llama-3.3-70b": Architecture(80, 8, 128, 70.6e9, 8192),
        "llama-3-70b": Architecture(80, 8, 128, 70.6e9, 8192),
        "llama-3.1-405b": Architecture(126, 8, 128, 405.9e9, 16384),
        "llama-3.2-1b": Architecture(16, 8, 64, 1.24e9, 2048),
        "llama-3.2-3b": Architecture(28, 8, 128, 3.21e9, 3072),
        "llama-2-7b": Architecture(32, 32, 128, 6.74e9, 4096),
        "llama-2-13b": Architecture(40, 40, 128, 13.0e9, 5120),
        "llama-2-70b": Architecture(80, 8, 128, 69.0e9, 8192),
        "qwen3-0.6b": Architecture(28, 8, 128, 0.6e9, 1024),
        "qwen3-1.7b": Architecture(28, 8, 128, 1.7e9, 2048),
        "qwen3-4b": Architecture(36, 8, 128, 4.0e9, 2560),
        "qwen3-8b": Architecture(36, 8, 128, 8.2e9, 4096),
        "qwen3-14b": Architecture(40, 8, 128, 14.8e9, 5120),
        "qwen3-32b": Architecture(64, 8, 128, 32.8e9, 5120),
        "qwen3-30b-a3b": Architecture(48, 4, 128, 30.5e9, 2048),
        "qwen2.5-7b": Architecture(28, 4, 128, 7.6e9, 3584),
        "qwen2.5-14b": Architecture(48, 8, 128, 14.7e9, 5120),
        "qwen2.5-32b": Architecture(64, 8, 128, 32.5e9, 5120),
        "qwen2.5-72b": Architecture(80, 8, 128, 72.7e9, 8192),
        "mistral-7b": Architecture(32, 8, 128, 7.25e9, 4096),
        "mistral-nemo": Architecture(40, 8, 128, 12.2e9, 5120),
        "mixtral-8x7b": Architecture(32, 8, 128, 46.7e9, 4096),
        "phi-4": Architecture(40, 10, 128, 14.7e9, 5120),
        "gemma-2-9b": Architecture(42, 8, 256, 9.24e9, 3584),
        "yi-34b": Architecture(60, 8, 128, 34.4e9, 7168),
        "opt-13b": Architecture(40, 40, 128, 13.0e9, 5120),
    }
)


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
    fitting = [known for known in _KNOWN if known in name]
    own = {
        field: described[key]
        for field, keys in _DESCRIBED.items()
        for key in keys
        if isinstance(described.get(key), int | float) and not isinstance(described[key], bool)
    }
    if fitting:
        return _KNOWN[max(fitting, key=len)]._replace(**own)
    if "layers" not in own:
        raise MeasuredError(
            f"model_name: {model!r} is not known: give num_hidden_layers in the configuration, or one of"
            f" {', '.join(_KNOWN)}"
        )
    return Architecture(**own)

"""The few numbers of public models that kernel tables do not hold: layers, KV heads, head size, parameters, hidden size.

From the models' published configurations (num_hidden_layers, num_key_value_heads, head_dim, hidden_size) and cards.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
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

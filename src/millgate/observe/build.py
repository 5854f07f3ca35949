"""How this installation runs: which of its modules a compiler has translated."""

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from typing import Final, Literal

_ONE_OF_EACH_GROUP: Final = ("millgate.core.words", "millgate.observe.ring", "millgate.engine.batching")
"""One module of each group that pyproject.toml names for the compiler: deciding, relaying, simulating."""

BuildKind = Literal["compiled", "partly compiled", "interpreted"]


def build_kind() -> BuildKind:
    """Return whether the modules that every request passes are compiled; it looks at files and loads none of them."""
    found = [_is_extension(name) for name in _ONE_OF_EACH_GROUP]
    if all(found):
        return "compiled"
    return "partly compiled" if any(found) else "interpreted"


def _is_extension(module: str) -> bool:
    spec = find_spec(module)
    return spec is not None and (spec.origin or "").endswith(tuple(EXTENSION_SUFFIXES))

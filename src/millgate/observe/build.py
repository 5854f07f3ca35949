"""Which of the modules of this process a compiler has translated."""

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final, Literal

import millgate

_ONE_OF_EACH_GROUP: Final = ("core/words", "observe/ring", "sim/loop")
"""One module of each group that pyproject.toml names for the compiler: deciding, relaying, simulating."""

BuildKind = Literal["compiled", "partly compiled", "interpreted"]


def build_kind() -> BuildKind:
    """Return whether the modules that every request passes are compiled; it looks at files and loads none of them."""
    found = [_is_extension(name) for name in _ONE_OF_EACH_GROUP]
    if all(found):
        return "compiled"
    return "partly compiled" if any(found) else "interpreted"


def _is_extension(module: str) -> bool:
    """Return whether this module's file is an extension; `find_spec` would load the package around it, a megabyte."""
    place = Path(millgate.__path__[0], module)
    return any(place.with_suffix(suffix).exists() for suffix in EXTENSION_SUFFIXES)

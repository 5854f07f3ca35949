"""Other processes of this interpreter find the libraries that this one has found, and nothing of the working directory."""

import os
import sys
from typing import Final

PYTHON: Final = (sys.executable, "-P")
"""How they are begun. With `-m` alone a `redis.py` in the directory where a gate is started would be taken for the library."""
_FOUND_BY: Final = ("LD_LIBRARY_PATH", "PYTHONHOME")
"""Without these some interpreters do not start: those of environment modules, as clusters for computing have them."""


def import_path() -> dict[str, str]:
    """Return the variable that tells such a process where to import from."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def bare_environment() -> dict[str, str]:
    """Return what such a process needs to start and to import, and no other variable of this one's."""
    return {name: os.environ[name] for name in _FOUND_BY if name in os.environ} | import_path()

"""The sources as the interpreter runs them.

Switches do not reach callers that mypyc has compiled, and a class that it has compiled has no interpreted ones below it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent


def is_compiled() -> bool:
    """Return whether this process runs compiled modules of the core."""
    return not str(import_module("millgate.core.lanes").__file__).endswith(".py")


def run_interpreted(arguments: Sequence[str], module: str = "lab") -> int:
    """Run `python -m MODULE` with these arguments over a copy of the sources without extensions; return its exit code."""
    with tempfile.TemporaryDirectory(prefix="millgate-lab-") as folder:
        without = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(_ROOT / "src" / "millgate", Path(folder) / "millgate", ignore=without)
        paths = os.pathsep.join((folder, str(_ROOT)))
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, check=False).returncode

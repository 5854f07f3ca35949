"""What an installation may lack: the libraries of the extras, and the line that installs them."""

from collections.abc import Mapping
from typing import Final

from millgate.cli.exits import CommandError

EXTRA_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "numpy": ("sim", "demo"),
    "plotly": ("sim",),
    "openai": ("demo",),
    "httpx": ("client",),
    "httpx2": ("demo", "client"),
}
"""The extras of pyproject.toml that bring each library which some commands need and others do not."""


def missing_extra(error: ModuleNotFoundError, command: str) -> CommandError | None:
    """Return the error that names the command's missing library and its extra; None for any other module."""
    library = (error.name or "").partition(".")[0]
    extras = EXTRA_OF.get(library)
    if extras is None:
        return None
    extra = command if command in extras else extras[0]
    return CommandError(
        f"`millgate {command}` needs {library}, which is not installed: pip install 'millgate[{extra}]'"
    )

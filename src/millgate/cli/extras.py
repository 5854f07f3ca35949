"""What an installation may lack: the libraries of the extras, and the line that installs them."""

from collections.abc import Mapping
from typing import Final

from millgate.cli.exits import CommandError

EXTRA_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "numpy": ("sim",),
    "plotly": ("sim",),
    "httpx": ("client",),
    "httpx2": ("client",),
    "redis": ("redis",),
    "grpcio": ("extproc",),
    "grpcio-health-checking": ("extproc",),
    "protobuf": ("extproc",),
    "xds-protos": ("extproc",),
}
"""The extras of pyproject.toml that bring each library which some commands need and others do not."""

_LIBRARY_OF: Final[Mapping[str, str]] = {
    "envoy": "xds-protos",
    "google": "protobuf",
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
}
"""The library that brings each module which has another name."""


def missing_extra(error: ModuleNotFoundError, command: str) -> CommandError | None:
    """Return the error that names the command's missing library and its extra; None for any other module."""
    module = (error.name or "").partition(".")[0]
    library = _LIBRARY_OF.get(module, module)
    extras = EXTRA_OF.get(library)
    if extras is None:
        return None
    extra = command if command in extras else extras[0]
    return CommandError(
        f"`millgate {command}` needs {library}, which is not installed: pip install 'millgate[{extra}]'"
    )

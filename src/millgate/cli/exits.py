"""How a command ends: its exit codes, the one error that says which, and what to say of an address or a library that lacks."""

import errno
from collections.abc import Mapping
from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """What the shell sees; stable, and documented by `millgate --help`."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    PORT_TAKEN = 3
    ENGINE_LOST = 4
    INTERRUPTED = 130


EXIT_CODES_HELP = (
    "Exit codes: 0 done; 1 failed while running; 2 wrong flag or bad configuration; "
    "3 address taken or not ours; 4 the embedded engine ended; 130 interrupted before it could finish."
)


class CommandError(Exception):
    """The command cannot go on; each line of the message is shown after the command's name."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILURE) -> None:
        super().__init__(message)
        self.code = code


def usage_error(error: ValueError, flags: Mapping[str, str] | None = None) -> CommandError:
    """Return the error for settings that were refused as `field: what is allowed`, naming the flag instead.

    `flags` holds the flags that are not called as their fields are.
    """
    field, colon, rest = str(error).partition(": ")
    if not colon or not field.isidentifier():
        return CommandError(str(error), ExitCode.USAGE)
    flag = (flags or {}).get(field) or "--" + field.removesuffix("_s").replace("_", "-")
    return CommandError(f"{flag}: {rest}", ExitCode.USAGE)


def address_error(error: OSError, host: str, port: int, remedy: str) -> CommandError:
    """Return the error for an address that `bind` refused: its holder is unknown, the flag that helps is not."""
    from socket import gaierror

    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        message = f"{where} is taken by another program: stop it, or choose another port with {remedy}"
    elif error.errno == errno.EACCES:
        message = f"{where} is not allowed to this user: choose a port above 1023 with {remedy}"
    elif error.errno == errno.EADDRNOTAVAIL or isinstance(error, gaierror):
        message = f"{where} is not an address of this machine"
    else:
        message = f"{where} cannot be listened on: {error.strerror or error}"
    return CommandError(message, ExitCode.PORT_TAKEN)


EXTRA_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "numpy": ("sim",),
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

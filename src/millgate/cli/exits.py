"""How a command ends: its exit codes, and the one error that says which."""

from collections.abc import Mapping
from enum import IntEnum


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

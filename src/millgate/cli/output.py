"""Where words go: one line of JSON, or a plain result, to stdout; everything for people to stderr."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millgate.cli.exits import CommandError, ExitCode

if TYPE_CHECKING:
    from rich.console import Console

_SERVERS = frozenset({"serve", "run", "engine", "extproc"})
PLAIN_WIDTH = 160
"""Of what goes to a file or a pipe, where no terminal says how wide it is."""


def print_line(text: str) -> None:
    """Write one line to stdout at once; raises CommandError when it cannot be written."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except OSError as error:
        # What is still buffered would be written, and fail again, at exit.
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, sys.stdout.fileno())
        os.close(silence)
        raise CommandError(f"cannot write to stdout: {error.strerror}", ExitCode.FAILURE) from None


def print_json(value: Any) -> None:
    """Write `value` as one line of JSON to stdout."""
    import msgspec

    print_line(msgspec.json.encode(value).decode())


def is_unread_server(arguments: Sequence[str]) -> bool:
    """Return whether this command line is a server's, and no terminal reads its stderr."""
    is_server = bool(arguments) and arguments[0] in _SERVERS and "envoy-config" not in arguments
    return is_server and not sys.stderr.isatty()


def speaks_json(arguments: Sequence[str]) -> bool:
    """Return whether what ends this command line is said in JSON: a server's, but for the external processor's, where no terminal reads it."""
    return is_unread_server(arguments) and arguments[0] != "extproc"


def print_error(message: str, *, as_json: bool = False) -> None:
    """Write every line of `message` to stderr, after the command's name or as JSON; a closed stderr is ignored."""
    if as_json:
        from millgate.cli.json_stderr import write_json

        for line in message.splitlines() or [""]:
            write_json("error", "failed", problem=line)
        return
    try:
        for line in message.splitlines() or ["failed"]:
            sys.stderr.write(f"millgate: {line}\n")
        sys.stderr.flush()
    except OSError:
        return


def people() -> "Console":
    """Return the console for people: stderr, plain when it is not a terminal or NO_COLOR is set.

    Without a reader the command goes on with its work and writes no more.
    """
    from rich.console import Console

    class People(Console):
        def on_broken_pipe(self) -> None:
            self.quiet = True

    width = None if sys.stderr.isatty() else PLAIN_WIDTH
    return People(stderr=True, highlight=False, width=width)

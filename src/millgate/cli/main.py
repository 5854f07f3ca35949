"""The `millgate` command. Only typer is imported here; the module of a command is imported when it is asked for."""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Final, NoReturn

import typer
from typer.exceptions import TyperException

from millgate.cli.exits import EXIT_CODES_HELP, CommandError, ExitCode, missing_extra
from millgate.cli.output import is_unread_server, print_error, print_line, speaks_json
from millgate.config.problems import ConfigError

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "run": ("run_all", "run_all"),
    "serve": ("serve", "serve"),
    "engine": ("engine", "engine"),
    "extproc": ("extproc", "extproc_app"),
    "check": ("config", "check"),
    "explain": ("explain", "explain"),
    "why": ("explain", "why"),
    "top": ("top", "top"),
    "size": ("size", "size"),
    "send": ("line", "send"),
    "ping": ("line", "ping"),
    "version": ("main", "version"),
    "key": ("key", "key_app"),
    "demo": ("demo", "demo"),
    "config": ("config", "config_app"),
    "sim": ("sim", "sim_app"),
}
"""Every command in the order of the help: its module in this room, and there its function or its own commands."""
_CONFIGURED: Final = frozenset({"run", "serve", "extproc", "check", "explain", "why", "top", "sim"})
"""Those that read a configuration whatever is asked of them."""
# Their loop (uvloop) is not for Windows.
_SERVING: Final = frozenset({"run", "serve", "engine", "extproc", "check", "demo"})
_STDERR: Final = 2


def version() -> None:
    """Print the version, and whether this installation is compiled."""
    from millgate.cli.banner import version_line

    print_line(version_line())


def command_line(names: Iterable[str] = tuple(COMMANDS)) -> typer.Typer:
    """Return the command line that knows these commands, all by default; their modules are imported."""
    app = typer.Typer(
        name="millgate",
        help="The overload-control gateway for LLM inference: a hard cap, bounded queues, true retry hints.",
        epilog=EXIT_CODES_HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_group)
    for name in names:
        module, attribute = COMMANDS[name]
        found = getattr(import_module(f"millgate.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return app


def _show_version(is_asked: bool) -> None:
    if is_asked:
        version()
        raise typer.Exit


def _group(
    shows_version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_show_version, help="Print what `millgate version` prints."
        ),
    ] = False,
) -> None:
    """Keep a lone command a subcommand."""
    del shows_version


def main(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; every foreseeable error becomes one line on stderr each."""
    return exit_code_of(_carry_out, arguments)


def exit_code_of(carry_out: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Return the exit code of what carries out a command line; every foreseeable error becomes one line on stderr each."""
    try:
        return carry_out(arguments)
    except TyperException as error:
        if message := error.format_message():  # without a command the help has been shown
            print_error(message + _remedy(error), as_json=speaks_json(arguments))
        return ExitCode.USAGE
    except CommandError as error:
        print_error(str(error), as_json=speaks_json(arguments))
        return error.code
    except ConfigError as error:
        print_error(str(error), as_json=speaks_json(arguments))
        return ExitCode.USAGE
    except UnicodeError as error:
        # In another encoding than the terminal's, or a host that is no name.
        print_error(f"an argument cannot be used: {error}", as_json=speaks_json(arguments))
        return ExitCode.USAGE
    except typer.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED


def _remedy(error: TyperException) -> str:
    """Return what to write in place of a word that the command does not take."""
    context = getattr(error, "ctx", None)
    if context is None:
        return ""
    parameters = context.command.params
    if getattr(error, "option_name", "") == "--config" and any(each.name == "file" for each in parameters):
        return f": a file is given as {context.command_path} FILE"
    if "unexpected extra argument" not in error.message:
        return ""
    takes_file = any("--config" in each.opts for each in parameters)
    takes_words = any(each.param_type_name == "argument" for each in parameters)
    file = ": a file is given with --config FILE" if takes_file and not takes_words else ""
    return file + (", the key on standard input" if context.command_path == "millgate key check" else "")


def _carry_out(arguments: Sequence[str]) -> int:
    # A gateway keeps what it has imported for as long as it serves. The help, and a mistyped command, need all names.
    asked = [name for name in arguments[:1] if name in COMMANDS]
    if sys.platform == "win32" and not _SERVING.isdisjoint(asked):
        raise CommandError(f"`millgate {asked[0]}` does not run on Windows: start it in WSL", ExitCode.USAGE)
    try:
        command = command_line(asked or COMMANDS)
        if asked and asked[0] in _CONFIGURED:
            # Here, where an interrupt is heard: pydantic loses it while it builds a schema.
            import_module("millgate.config.schema")
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            # By `__main__`; from now on there is something to tidy up.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        result = command(list(arguments), prog_name="millgate", standalone_mode=False)
    except ModuleNotFoundError as error:
        raise missing_extra(error, "".join(asked)) or error from None
    return result if isinstance(result, int) else ExitCode.OK


def run() -> NoReturn:
    """Run this process's command line and end the process with its exit code."""
    # A stream that is closed from the start is None. Its descriptor would go to a socket, and libuv aborts where it
    # closes such a one.
    while (spare := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(spare)
    sys.stdout, sys.stderr = (each or open(os.devnull, "w") for each in (sys.stdout, sys.stderr))  # noqa: SIM115, PTH123
    if isinstance(sys.stdout, TextIOWrapper):
        # A locale without letters (LC_ALL=C, a code page of Windows) ends no command; what is not for a terminal is UTF-8.
        sys.stdout.reconfigure(encoding=None if sys.stdout.isatty() else "utf-8", errors="backslashreplace")
    arguments = sys.argv[1:]
    if is_unread_server(arguments):
        from millgate.cli.json_stderr import take_over

        take_over()
    sys.exit(main(arguments))

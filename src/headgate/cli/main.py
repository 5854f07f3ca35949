"""The `headgate` command. Only typer is imported here; each command imports what it runs when it runs."""

import sys
from collections.abc import Sequence
from typing import NoReturn

import typer
from typer.exceptions import TyperException

from headgate.cli.config import check, config_app
from headgate.cli.demo import demo_app
from headgate.cli.engine import engine
from headgate.cli.exits import EXIT_CODES_HELP, CommandError, ExitCode
from headgate.cli.explain import explain
from headgate.cli.key import key_app
from headgate.cli.line import ping, send
from headgate.cli.output import print_error, print_line
from headgate.cli.run_all import run_all
from headgate.cli.serve import serve
from headgate.cli.sim import sim_app, size
from headgate.cli.top import top
from headgate.cli.why import why

app = typer.Typer(
    name="headgate",
    help="The overload-control gateway for LLM inference: a hard cap, bounded queues, true retry hints.",
    epilog=EXIT_CODES_HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("run")(run_all)
app.command("serve")(serve)
app.command("engine")(engine)
app.command("check")(check)
app.command("explain")(explain)
app.command("why")(why)
app.command("top")(top)
app.add_typer(key_app, name="key")
app.add_typer(demo_app, name="demo")
app.add_typer(config_app, name="config")
app.add_typer(sim_app, name="sim")
app.command("size")(size)
app.command("send")(send)
app.command("ping")(ping)


@app.command()
def version() -> None:
    """Print the version."""
    from headgate import __version__

    print_line(__version__)


def main(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; every foreseeable error becomes one line on stderr each."""
    try:
        result = app(list(arguments), standalone_mode=False)
    except TyperException as error:
        print_error(error.format_message())
        return ExitCode.USAGE
    except CommandError as error:
        print_error(str(error))
        return error.code
    except typer.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    return result if isinstance(result, int) else ExitCode.OK


def run() -> NoReturn:
    """Run this process's command line and end the process with its exit code."""
    sys.exit(main(sys.argv[1:]))

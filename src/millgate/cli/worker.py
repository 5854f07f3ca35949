"""One worker of `serve --workers`: started by its supervisor, with the descriptor of the channel to it and its number.

`python -m millgate.cli.worker DESCRIPTOR SUPERVISOR`; not for the hand.
"""

import signal

if __name__ == "__main__":  # before what takes time to import
    # Who signals all processes of a service means the supervisor with both: it replaces this one, and passes a reload on.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from pydantic import SecretStr

from millgate import __version__
from millgate.cli.banner import Running
from millgate.cli.compose import serve_configuration, worker_settings
from millgate.cli.exits import CommandError, ExitCode
from millgate.cli.json_stderr import take_over
from millgate.cli.workers import read_given
from millgate.config.load import Loaded
from millgate.config.problems import ConfigError
from millgate.gateway.settings import GatewaySettings
from millgate.gateway.workers.messages import Recipe
from millgate.gateway.workers.worker import WorkerSide
from millgate.sockets.loop import GateLoop

if TYPE_CHECKING:
    from millgate.gateway import Gateway
    from millgate.wiring.settings import Built

_PR_SET_PDEATHSIG = 1
"""From <sys/prctl.h>."""


async def work(descriptor: int) -> ExitCode:
    """Serve as the supervisor says, and return the exit code; why it cannot be done is told to the supervisor alone."""
    side = WorkerSide()
    start = await side.connect(descriptor)
    given = read_given(start.recipe.given)

    def load(text: str | None = None) -> Loaded:
        if start.version != __version__:
            raise CommandError(f"{__version__} is installed, and {start.version} runs: restart the gate")
        loaded = given.load(text)
        # All workers have one key for tickets, and for marks of prefixes.
        secret = loaded.ticket_secret or SecretStr(start.ticket_key.hex())
        return loaded._replace(ticket_secret=secret)

    def announce(gateway: "Gateway", built: "Built") -> None:
        running = Running.of(gateway, built, loaded, given.engine_note)
        side.serves(gateway, msgspec.msgpack.encode(running))

    try:
        loaded = load(start.recipe.text)
        begun = _begun(load, start.recipe)
        code = await serve_configuration(loaded, announce, load, worker=side, begun=begun)
    except (CommandError, ConfigError) as error:
        code = error.code if isinstance(error, CommandError) else ExitCode.USAGE
        side.failed(str(error), code)
    await side.farewell()
    return code


def _begun(load: Callable[[str], Loaded], recipe: Recipe) -> GatewaySettings | None:
    """Return what the gate began with; None where it runs just that, or where that cannot be read any more."""
    if recipe.text == recipe.first_text:
        return None
    with suppress(ConfigError):
        return worker_settings(load(recipe.first_text))
    return None


def end_with(supervisor: int) -> None:
    """Have the kernel end this process with its supervisor: a worker that goes on alone would let in what others let in too."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        sys.exit(ExitCode.FAILURE)


def main(descriptor: str, supervisor: str) -> int:
    """Run one worker and return its exit code."""
    end_with(int(supervisor))
    # A terminal's Ctrl-C is for the supervisor. A session of its own would be a scheduling group of its own, too (autogroup,
    # sched(7)), and workers would wait for the processor beside what they work with.
    os.setpgid(0, 0)
    if not sys.stderr.isatty():
        take_over()
    with asyncio.Runner(loop_factory=GateLoop) as runner:
        return runner.run(work(int(descriptor)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

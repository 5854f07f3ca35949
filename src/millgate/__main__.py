"""The `millgate` command, and `python -m millgate`."""

import os
import signal
import sys


def run() -> None:
    """Run this process's command line and end the process with its exit code."""
    # While a command is imported an interrupt would be a traceback, or be swallowed by what builds a schema.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if os.getpid() == 1:
        # A container's first process gets no signal that it has no handler for (pid_namespaces(7)): a stop while it
        # starts was lost.
        signal.signal(signal.SIGTERM, lambda number, _frame: os._exit(128 + number))
    if sys.argv[1:2] in (["serve"], ["extproc"]) and sys.platform != "win32":
        # Until it is heard: by default it would end what has yet to start, and the reload that it asks for would be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    from millgate.cli.main import run as run_command  # noqa: PLC0415 - takes time, and can be interrupted

    run_command()


if __name__ == "__main__":
    run()

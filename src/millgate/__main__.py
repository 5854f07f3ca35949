"""The `millgate` command, and `python -m millgate`."""

import signal


def run() -> None:
    """Run this process's command line and end the process with its exit code."""
    # While a command is imported an interrupt would be a traceback, or be swallowed by what builds a schema.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from millgate.cli.main import run as run_command  # noqa: PLC0415 - takes time, and can be interrupted

    run_command()


if __name__ == "__main__":
    run()

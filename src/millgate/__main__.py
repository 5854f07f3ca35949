"""The `millgate` command, and `python -m millgate`."""

from millgate.cli.interrupts import end_at_once


def run() -> None:
    """Run this process's command line and end the process with its exit code."""
    end_at_once()
    from millgate.cli.main import run as run_command  # noqa: PLC0415 - takes time, and can be interrupted

    run_command()


if __name__ == "__main__":
    run()

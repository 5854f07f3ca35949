"""`python -m headgate` is the `headgate` command."""

from headgate.cli.main import run

if __name__ == "__main__":
    run()

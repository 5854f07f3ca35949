"""`python -m millgate` is the `millgate` command."""

from millgate.cli.main import run

if __name__ == "__main__":
    run()

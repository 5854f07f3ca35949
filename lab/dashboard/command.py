"""`python -m lab dashboard` tries every query of the dashboard on a recorded overload; `--write` writes deploy/grafana/millgate.json.

It needs Debian's `prometheus`. The exit code is 1 when a query shows nothing.
"""

import argparse
import sys
from pathlib import Path

from lab.dashboard.grafana import FILE, render
from lab.dashboard.recording import record, report
from lab.knobs import ABOVE_0, at_least, within


def main(arguments: list[str]) -> int:
    """Carry out the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m lab dashboard", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the dashboard's JSON and run nothing")
    parser.add_argument(
        "--seconds", type=within(float, ABOVE_0), default=45.0, help="how long the overload lasts (45)"
    )
    parser.add_argument(
        "--users", type=within(int, at_least(1)), default=96, help="users in a closed loop (96)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of what the users do (1)")
    parser.add_argument("--draw", type=Path, metavar="FILE", help="also draw every panel on an HTML page")
    asked = parser.parse_args(arguments)
    if asked.write:
        FILE.write_text(render(), encoding="utf-8")
        return 0
    try:
        shown = record(asked.seconds, asked.users, asked.seed)
    except RuntimeError as error:
        parser.error(str(error))
    text, empty = report(shown)
    print(text)
    if asked.draw is not None:
        from lab.dashboard.drawing import draw

        draw(shown, asked.draw)
    for each in empty:
        print(f"shows nothing: {each}", file=sys.stderr)
    return 1 if empty else 0

"""A gate under users and engines that do everything wrong, until the time is over: `make soak`.

    PYTHONPATH=tests .venv/bin/python -m faults.soak --seconds 600 [--seed 1] [--scene "one engine"]

Without a scene the first takes half of the time, and the others share the rest. Of each scene a table goes to stderr
and one line of JSON to stdout; exit code 1 when anything was found.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from faults.soak.report import as_json, as_table
from faults.soak.run import Soak
from faults.soak_scenes import SCENES, Scene


def main() -> int:
    """Soak for `--seconds` in all; return 0 when nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scene", choices=list(SCENES), default=None)
    asked = parser.parse_args()
    found = False
    for scene, seconds in _plan(asked.scene, asked.seconds):
        with tempfile.TemporaryDirectory(prefix="millgate-soak-") as folder:
            report = asyncio.run(Soak(Path(folder), asked.seed, scene).run(seconds))
        sys.stderr.write(as_table(report) + "\n\n")
        sys.stdout.write(as_json(report) + "\n")
        sys.stdout.flush()
        found = found or bool(report.findings)
    return 1 if found else 0


def _plan(name: str | None, seconds: float) -> list[tuple[Scene, float]]:
    if name is not None:
        return [(SCENES[name], seconds)]
    first, *others = SCENES.values()
    return [(first, seconds / 2), *((scene, seconds / 2 / len(others)) for scene in others)]


if __name__ == "__main__":
    raise SystemExit(main())

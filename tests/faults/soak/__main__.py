"""A gate under users and engines that do everything wrong, until the time is over: `make soak`.

    PYTHONPATH=tests .venv/bin/python -m faults.soak --seconds 600 [--seed 1]

The table goes to stderr, one line of JSON to stdout; exit code 1 when anything was found.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from faults.soak.report import as_json, as_table
from faults.soak.run import Soak


def main() -> int:
    """Soak for `--seconds`; return 0 when nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millgate-soak-") as folder:
        report = asyncio.run(Soak(Path(folder), asked.seed).run(asked.seconds))
    sys.stderr.write(as_table(report) + "\n")
    sys.stdout.write(as_json(report) + "\n")
    return 1 if report.findings else 0


if __name__ == "__main__":
    raise SystemExit(main())

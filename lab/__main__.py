"""`python -m lab ablate` measures what every refinement of the core is worth, and `--write` puts the table into docs.

`python -m lab core` counts the lines and the numeric constants of the core, and the files that an arrival visits.
"""

import argparse
import sys

from lab.ablation import FIRST_SEED, ablate
from lab.core_size import report
from lab.interpreted import is_compiled, run_interpreted
from lab.suites import SUITES
from lab.table import PAGE, page


def _main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab", description=__doc__)
    parser.add_argument("what", choices=("ablate", "core"), help="what to measure")
    parser.add_argument(
        "--only", metavar="SUITE", choices=sorted(SUITES), help="refinements that it measures, on it alone"
    )
    parser.add_argument(
        "--first-seed", type=int, default=FIRST_SEED, help=f"seeds from here on ({FIRST_SEED})"
    )
    parser.add_argument("--processes", type=int, default=2, help="runs at the same time (2)")
    parser.add_argument("--write", action="store_true", help=f"write docs/{PAGE.name}")
    asked = parser.parse_args(arguments)
    if asked.write and asked.only:
        parser.error("--write: the page needs all suites, leave --only out")
    if is_compiled():
        print(
            "lab: the core is compiled, and this needs the interpreted one: running a copy of the sources",
            file=sys.stderr,
        )
        return run_interpreted(arguments)
    if asked.what == "core":
        print(report())
        return 0
    suites = [asked.only] if asked.only else list(SUITES)
    text = page(ablate(suites, first_seed=asked.first_seed, processes=asked.processes), asked.first_seed)
    if asked.write:
        PAGE.write_text(text)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))

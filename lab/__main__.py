"""`python -m lab run NAME` runs an experiment of docs/ (`list` names them), `validate` the governor against closed forms.

`python -m lab demo NAME` shows on real processes what the gate is for; the one demo that users have is `millgate demo`.
`python -m lab ablate` measures what every refinement of the core is worth, and `--write` puts the table into docs.

`python -m lab core` counts the lines and the numeric constants of the core, and the files that an arrival visits.
`python -m lab dashboard` tries every query of the Grafana dashboard on an overload in real time; it has options of its own.
`python -m lab cluster` lets gates that share a Redis live through faults, as real processes; it has options of its own, too.
`python -m lab real` puts users before a real engine, with and without the gate, and records runs; it has options of its own, too.
`python -m lab prose` lists sentences that are too long, or whose subject is impersonal, in pages and docstrings.
"""

import argparse
import sys

from lab import prose
from lab.ablation import FIRST_SEED, ablate
from lab.core_size import report
from lab.interpreted import is_compiled, run_interpreted
from lab.knobs import at_least, within
from lab.suites import SUITES
from lab.table import PAGE, page


def _main(arguments: list[str]) -> int:
    if arguments[:1] and arguments[0] in {"run", "list", "validate", "demo"}:
        from lab.commands import carry_out

        return carry_out(arguments)
    if arguments[:1] == ["dashboard"]:
        from lab.dashboard.command import main

        return main(arguments[1:])
    if arguments[:1] == ["cluster"]:
        from lab.cluster.command import main as live_through_faults

        return live_through_faults(arguments[1:])
    if arguments[:1] == ["real"]:
        from lab.real_engine.command import main as before_an_engine

        return before_an_engine(arguments[1:])
    parser = argparse.ArgumentParser(prog="python -m lab", description=__doc__)
    parser.add_argument(
        "what",
        choices=("ablate", "core", "prose"),
        metavar="{run,list,validate,demo,dashboard,cluster,real,ablate,core,prose}",
        help="what to do; the first seven have options of their own",
    )
    parser.add_argument(
        "--only", metavar="SUITE", choices=sorted(SUITES), help="refinements that it measures, on it alone"
    )
    parser.add_argument(
        "--first-seed",
        type=within(int, at_least(0)),
        default=FIRST_SEED,
        help=f"seeds from here on ({FIRST_SEED})",
    )
    parser.add_argument(
        "--processes", type=within(int, at_least(1)), default=2, help="runs at the same time (2)"
    )
    parser.add_argument("--write", action="store_true", help=f"write docs/{PAGE.name}")
    asked = parser.parse_args(arguments)
    if asked.write and asked.only:
        parser.error("--write: the page needs all suites, leave --only out")
    if asked.what == "prose":
        print(prose.report())
        return 0
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

"""`python -m lab run|list|validate|demo`: the studies of docs/, the truths, and demonstrations on real processes."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from shlex import quote
from typing import Annotated

import typer
from rich.table import Table

from lab.demos.command import demo_app
from lab.experiments.catalogue import EXPERIMENTS, chosen, run_arm
from lab.truths.exact import exact_rows
from lab.truths.pools import pool_rows
from lab.truths.prefixes import prefix_rows
from lab.truths.rows import PARTS, ValidationRow, all_truths, judge, run_part
from millgate.cli.exits import CommandError, ExitCode
from millgate.cli.main import exit_code_of
from millgate.cli.output import people, print_json, print_line
from millgate.cli.sim import (
    HtmlOption,
    JsonOption,
    ProcessesOption,
    SeedsOption,
    SvgOption,
    in_parallel,
    measured_result,
    show_result,
)
from millgate.sim.traces.tables import TraceError

app = typer.Typer(name="python -m lab", no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(demo_app, name="demo")


def carry_out(arguments: Sequence[str]) -> int:
    """Carry out one of these commands and return its exit code."""
    return exit_code_of(lambda words: app(list(words), standalone_mode=False) or ExitCode.OK, arguments)


@app.command("list")
def list_experiments(as_json: JsonOption = False) -> None:
    """List the experiments that `run` knows."""
    if as_json:
        print_json([{"name": each.name, "question": each.question} for each in EXPERIMENTS.values()])
        return
    for experiment in EXPERIMENTS.values():
        print_line(f"{experiment.name:18} {experiment.question}")


@app.command()
def run(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An experiment: `python -m lab list`.")],
    seeds: SeedsOption = None,
    as_json: JsonOption = False,
    html: HtmlOption = None,
    svg: SvgOption = None,
    processes: ProcessesOption = None,
    knobs: Annotated[
        list[str] | None, typer.Option("--set", metavar="KNOB=VALUE", help="Turn a knob of the experiment.")
    ] = None,
    first_seed: Annotated[int, typer.Option(min=1, help="The first of the seeds.")] = 1,
) -> None:
    """Run an experiment over several seeds and say what came out."""
    if name not in EXPERIMENTS:
        raise CommandError(f"{name!r} is not one of {', '.join(EXPERIMENTS)}", ExitCode.USAGE)
    turned = _knobs(knobs or [])
    try:
        experiment = chosen(name, turned)
    except ValueError as error:
        raise CommandError(f"--set: {error}", ExitCode.USAGE) from None
    arm = partial(run_arm, name, knobs=turned, first_seed=first_seed)
    try:
        result = measured_result(experiment, arm, seeds, processes)
    except TraceError as error:
        raise CommandError(f"--set: {error}", ExitCode.USAGE) from None
    typed = "".join([f" --set {quote(f'{knob}={value}')}" for knob, value in turned.items()])
    command = f"python -m lab run {name}{typed} --seeds {seeds or experiment.seeds}"
    if first_seed > 1:
        command += f" --first-seed {first_seed}"
    show_result(result, command, html, svg, as_json=as_json)


def _knobs(assignments: list[str]) -> dict[str, str]:
    """Return what is set, by name."""
    turned = {}
    for assignment in assignments:
        name, sign, value = assignment.partition("=")
        if not sign:
            raise CommandError(f"--set: {assignment!r} is not KNOB=VALUE", ExitCode.USAGE)
        turned[name.strip()] = value.strip()
    return turned


@app.command()
def validate(as_json: JsonOption = False, processes: ProcessesOption = None) -> int:
    """Hold the governor in the simulator against closed forms."""
    rows = _validation_rows(processes)
    if as_json:
        print_json({"rows": [asdict(row) for row in rows]})
    else:
        _show_rows(rows)
    return ExitCode.OK if all(row.ok for row in rows) else ExitCode.FAILURE


def _validation_rows(processes: int | None) -> list[ValidationRow]:
    truths = all_truths()
    tasks = [(index, part) for index in range(len(truths)) for part in range(PARTS)]
    tallies = in_parallel(run_part, tasks, "validating", processes)
    rows = exact_rows() + prefix_rows() + pool_rows()
    for index, truth in enumerate(truths):
        rows += judge(truth, tallies[index * PARTS : (index + 1) * PARTS])
    return rows


def _show_rows(rows: list[ValidationRow]) -> None:
    table = Table("truth", "expected", "got", "standard error", "arrivals", "")
    for row in rows:
        verdict = "ok" if row.ok else "[red]off[/red]"
        table.add_row(
            row.name, f"{row.expected:.6g}", f"{row.got:.6g}", f"{row.stderr:.2g}", f"{row.n:,}", verdict
        )
    people().print(table)
    people().print(f"{sum(row.ok for row in rows)} of {len(rows)} rows ok")

"""`millgate sim`: a configuration and a load of your own in virtual time, bounds, and a measured run to judge by."""

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from functools import partial
from itertools import islice
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from millgate.cli.exits import CommandError, ExitCode
from millgate.cli.output import people, print_json, print_line

if TYPE_CHECKING:
    from millgate.engine.profile import EngineProfile
    from millgate.sim.experiments.contract import Experiment, ExperimentResult, Measured

sim_app = typer.Typer(
    help="The same governor in virtual time: your configuration, your traces.", no_args_is_help=True
)

# Lengths by name come for ever; this many make a picture.
_SPEC_REQUESTS = 10_000

JsonOption = Annotated[bool, typer.Option("--json", help="Print one line of JSON on stdout.")]
SeedsOption = Annotated[int | None, typer.Option(min=1, max=1000, help="Seeds.", show_default="its own")]
HtmlOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a self-contained report.")]
SvgOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the picture alone.")]
RateOption = Annotated[
    float, typer.Option(min=0.001, max=1e6, help="Requests a second, for lengths by name and for sessions.")
]
ProcessesOption = Annotated[int | None, typer.Option(min=1, help="Processes.", show_default="all processors")]


@sim_app.command()
def validate(
    measured: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the measured run.")],
    as_json: JsonOption = False,
) -> None:
    """Judge the simulator against a measured run of a real engine."""
    from millgate.sim.measured.judge import judge
    from millgate.sim.measured.run import read_run
    from millgate.sim.measured.tables import MeasuredError

    try:
        verdict = judge(read_run(measured))
    except (MeasuredError, OSError) as error:
        raise CommandError(f"--measured: {error}", ExitCode.USAGE) from None
    if as_json:
        print_json(verdict.as_dict())
        return
    from rich.table import Table

    table = Table("simulated against measured", "TTFT", "TPOT", "E2E", "makespan")
    fitted = f"{verdict.overhead_ms:.2f} ms a step, second half"
    for name, errors in (("nothing fitted", verdict.errors), (fitted, verdict.fitted)):
        table.add_row(name, *(f"{value:+.1%}" for value in asdict(errors).values()))
    people().print(table)


@sim_app.command()
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE.yaml", help="The experiment: docs/simulator.md.")],
    seeds: SeedsOption = None,
    as_json: JsonOption = False,
    html: HtmlOption = None,
    svg: SvgOption = None,
    processes: ProcessesOption = None,
) -> None:
    """Run an experiment of your own over several seeds: your configuration, your trace, the policies to compare."""
    from millgate.sim.experiments.file import file_experiment, run_file_arm
    from millgate.sim.traces.tables import TraceError

    if file.suffix not in {".yaml", ".yml"}:
        raise CommandError(
            f"{str(file)!r} is no YAML file; the studies of docs/ run from a checkout: python -m lab run NAME",
            ExitCode.USAGE,
        )
    experiment = file_experiment(file)
    try:
        result = measured_result(experiment, partial(run_file_arm, file), seeds, processes)
    except TraceError as error:
        raise CommandError(f"sim.trace: {error}", ExitCode.USAGE) from None
    show_result(
        result, f"millgate sim run {file} --seeds {seeds or experiment.seeds}", html, svg, as_json=as_json
    )


def measured_result(
    experiment: "Experiment",
    run_arm: "Callable[[int, int], Measured]",
    seeds: int | None,
    processes: int | None,
) -> "ExperimentResult":
    """Run every arm under every seed, in processes of their own, and put the runs together.

    `run_arm` takes an arm's number and a seed; it must be plain data for another process.
    """
    from millgate.sim.experiments.contract import answer

    arms = [
        (index, seed)
        for seed in range(1, (seeds or experiment.seeds) + 1)
        for index in range(len(experiment.arms))
    ]
    measured = in_parallel(run_arm, arms, experiment.name, processes)
    return answer(
        experiment, [(experiment.arms[index], one) for (index, _), one in zip(arms, measured, strict=True)]
    )


def show_result(
    result: "ExperimentResult", command: str, html: Path | None, svg: Path | None, *, as_json: bool
) -> None:
    """Print the result, and write the report that names this command and the picture, where they were asked for."""
    if as_json:
        print_json(result.as_dict())
    else:
        _show_answer(result)
    if html is not None:
        from millgate.sim.report.drawing import page

        write_file("--html", html, page(result, f"{command} --html {html.name}"))
    if svg is not None:
        from millgate.sim.report.drawing import drawing

        write_file("--svg", svg, drawing(result))


def write_file(flag: str, file: Path, text: str) -> None:
    """Write this text; raises CommandError naming the flag and the file when it cannot be written."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{flag}: {file}: {error.strerror}", ExitCode.USAGE) from None


def _show_answer(result: "ExperimentResult") -> None:
    from rich.table import Table

    table = Table("series", result.x_label, f"{result.y_label} (95 % interval)", title=result.question)
    for place in result.places:
        chosen = place.metrics[result.metric]
        table.add_row(
            place.series, f"{place.x:g}", f"{chosen.mean:.3f} ({chosen.low:.3f} to {chosen.high:.3f})"
        )
    people().print(table)
    for name, value in result.facts.items():
        people().print(f"{name}: {value:.4g}")


@sim_app.command()
def replay(
    trace: Annotated[str, typer.Argument(metavar="TRACE|SPEC", help="A trace file, or lengths by name.")],
    engines: Annotated[int, typer.Option(min=1, max=10_000, help="Engines.")] = 1,
    profile: Annotated[str, typer.Option(help="Their profile.")] = "llama3-8b_h100_tp1",
    max_inflight: Annotated[
        int | None, typer.Option(min=1, help="Cap of each engine.", show_default="the profile's batch")
    ] = None,
    slo: Annotated[str, typer.Option(help="Time to the first token that is still good.")] = "10s",
    policy: Annotated[str, typer.Option(help="What decides; a wrong name lists them.")] = "gate",
    prefix_caching: Annotated[
        bool, typer.Option("--prefix-caching", help="Engines keep what prompts have in common.")
    ] = False,
    rate: RateOption = 20.0,
    faster: Annotated[float, typer.Option(min=0.001, help="Let the trace run so many times faster.")] = 1.0,
    requests: Annotated[int | None, typer.Option(min=1, help="Most requests.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Let a trace pass through the gate once, and say what came of it and how fast that was simulated."""
    from dataclasses import replace
    from time import perf_counter, process_time

    from millgate.core.settings import LaneSettings
    from millgate.sim.fleet import SimulatedFleet, uniform_fleet
    from millgate.sim.policies import POLICIES
    from millgate.sim.randomness import Streams
    from millgate.sim.replay import replay as replayed
    from millgate.sim.traces import sources
    from millgate.wiring.chosen import PREFILL_TOKENS

    if policy not in POLICIES:
        raise CommandError(f"--policy: {policy!r} is not one of {', '.join(POLICIES)}", ExitCode.USAGE)
    slo_s = seconds("--slo", slo)
    # What `millgate serve` runs by default: interactive work, shortest first, and the prefill meter.
    lane = LaneSettings("interactive", ttft_slo_s=slo_s, deadline_s=slo_s, order="short_first")
    fleet = uniform_fleet(engine_profile(profile), engines, [lane], max_inflight=max_inflight)
    metered = tuple(replace(engine, prefill_tokens=PREFILL_TOKENS) for engine in fleet.settings.engines)
    fleet = SimulatedFleet(replace(fleet.settings, engines=metered), fleet.profiles, prefix_caching)
    try:
        if requests is None and not Path(trace).is_file():
            requests = _SPEC_REQUESTS
        jobs = sources.faster(sources.open_trace(trace, Streams(seed), rate, inf), faster)
        began, began_cpu = perf_counter(), process_time()
        jobs = sources.within_lanes(jobs, [lane], trace)
        result = replayed(islice(jobs, requests), fleet, policy)
    except ValueError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None
    wall_s, cpu_s = perf_counter() - began, process_time() - began_cpu
    speed = {"wall_s": wall_s, "cpu_s": cpu_s, "requests_per_cpu_s": result.summary.requests / cpu_s}
    if as_json:
        print_json({**result.summary.as_dict(), "virtual_s": result.lasted_s, "speed": speed})
        return
    _show_replay(result.summary.as_dict(), speed)


def _show_replay(summary: dict[str, Any], speed: dict[str, float]) -> None:
    from rich.table import Table

    table = Table("what", "value")
    for name, value in summary.items():
        if isinstance(value, dict):
            text = ", ".join(f"{key} {each:,.4g}" for key, each in value.items()) or "none"
        else:
            text = f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
        table.add_row(name.replace("_", " "), text)
    people().print(table)
    people().print(
        f"simulated in {speed['wall_s']:.2f} s: {speed['requests_per_cpu_s']:,.0f} requests a CPU second"
    )


def seconds(flag: str, text: str) -> float:
    """Return a duration above 0; raises CommandError naming the flag otherwise."""
    from millgate.config.units import parse_duration

    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise CommandError(f"{flag}: {error}", ExitCode.USAGE) from None
    if not seconds > 0.0:
        raise CommandError(f"{flag}: must be above 0, got {text}", ExitCode.USAGE)
    return seconds


def engine_profile(name: str) -> "EngineProfile":
    """Return the shipped profile of this name; raises CommandError naming those there are."""
    from millgate.engine.profile import find_profile

    try:
        return find_profile(name)
    except ValueError as error:
        raise CommandError(f"--{error}", ExitCode.USAGE) from None


@sim_app.command()
def bound(
    trace: Annotated[str, typer.Argument(metavar="TRACE|SPEC", help="A trace file, or lengths by name.")],
    slo: Annotated[str, typer.Option(help="Time to the first token that is still good.")] = "2s",
    engines: Annotated[int, typer.Option(min=1, max=10_000, help="Engines.")] = 1,
    profile: Annotated[str, typer.Option(help="Their profile.")] = "llama3-8b_h100_tp1",
    rate: RateOption = 20.0,
    faster: Annotated[float, typer.Option(min=0.001, help="Let the trace run so many times faster.")] = 1.0,
    lasts: Annotated[str, typer.Option(help="How long requests come, for lengths by name.")] = "300s",
    seed: Annotated[int, typer.Option(min=0, help="Seed.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Say what share of a load could be good at most, and what surely can, without prefix caches."""
    from millgate.sim.bounds.bound import bound as bound_of
    from millgate.sim.randomness import Streams
    from millgate.sim.traces.sources import faster as sped_up, open_trace

    slo_s, lasts_s, chosen = seconds("--slo", slo), seconds("--lasts", lasts), engine_profile(profile)
    try:
        jobs = sped_up(open_trace(trace, Streams(seed), rate, lasts_s), faster)
        result = bound_of(jobs, chosen, engines, slo_s)
    except ValueError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None
    if as_json:
        print_json(result.as_dict())
        return
    for name, value in result.as_dict().items():
        print_line(f"{name:12} {value:,.0f}" if name == "requests" else f"{name:12} {value:.3f}")


Result = TypeVar("Result")


def in_parallel(
    function: Callable[..., Result],
    tasks: Sequence[tuple[Any, ...]],
    title: str,
    processes: int | None = None,
) -> list[Result]:
    """Return `function(*task)` for every task, in their order; a failure in a process is raised here.

    `function` must live in a module (it is found there by name), tasks and results must be plain data.
    """
    from rich.progress import Progress

    count = min(processes or os.cpu_count() or 1, len(tasks))
    with Progress(console=people(), transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task(title, total=len(tasks))
        if count <= 1:
            results = []
            for task in tasks:
                results.append(function(*task))
                progress.advance(bar)
            return results
        pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))
        futures = [pool.submit(function, *task) for task in tasks]
        try:
            for future in as_completed(futures):
                future.result()
                progress.advance(bar)
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            if isinstance(error, BrokenProcessPool):
                died = "one of the processes was killed, perhaps for want of memory: try fewer --processes"
                raise CommandError(died, ExitCode.FAILURE) from None
            raise
        return [future.result() for future in futures]

"""Recorded arrivals at several times the capacity, through the gate: the tables of docs/policies/short-first.md.

    python -m lab.recorded shared/data/traces/AzureLLMInferenceTrace_code.csv --slo 5

The trace is cut into stretches of equal length; each is made so much faster that it asks for the stated multiple of one
engine's capacity. Figures are good answers as a share of requests, means over the stretches. `of the line` is the gate
(short_first, with the meter) over the size-blind line, and `worst` the least of these ratios. With `--hints` the script says instead
how many clients that returned on time were admitted then, by a gate of 64 streams that queues nothing.
"""

import sys
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from lab.experiments.promises import Case, attend
from lab.knobs import ABOVE_0, FILE, PROFILE, at_least, within
from millgate.core.settings import LaneSettings
from millgate.engine.profile import EngineProfile, find_profile
from millgate.sim.bounds.bound import bound
from millgate.sim.clients.crowd import Manners
from millgate.sim.clients.retry_behaviour import Sdk
from millgate.sim.fleet import SimulatedFleet, uniform_fleet
from millgate.sim.jobs import Job
from millgate.sim.laws import constant
from millgate.sim.randomness import Streams
from millgate.sim.replay import replay
from millgate.sim.traces.sources import between, faster
from millgate.sim.traces.tables import read_table
from millgate.wiring.chosen import PREFILL_TOKENS

# Users leave after so many times the objective.
_PATIENCE = 2.5
# Of the engine whose hints are watched.
_STREAMS = 64
_HINTS_HEADER = "load | arrival: kept | promises | short_first: kept | promises\n"
_HEADER = (
    "load | size-blind | first come | sizes known | arrival | no meter | short_first | of the line | worst\n"
)


def at_load(
    path: Path, begin_s: float, end_s: float, load: float, profile: EngineProfile, slo_s: float
) -> list[Job]:
    """Return this stretch of a trace, made so much faster that it asks for `load` times one engine's capacity."""
    coming = list(between(read_table(path), begin_s, end_s))
    if not coming:
        raise ValueError(f"holds no request from {begin_s:g} to {end_s:g} s, take fewer --stretches")
    return list(faster(coming, load / bound(coming, profile, 1, slo_s).load))


def good_share(
    coming: list[Job], profile: EngineProfile, slo_s: float, order: str, prefill_tokens: int | None
) -> float:
    """Return which share of these requests one such engine answers well behind a gate with this order and meter."""
    lane = LaneSettings("interactive", ttft_slo_s=slo_s, deadline_s=slo_s, order=order, fair=True)
    plain = uniform_fleet(profile, 1, [lane])
    engines = tuple(replace(engine, prefill_tokens=prefill_tokens) for engine in plain.settings.engines)
    fleet = SimulatedFleet(replace(plain.settings, engines=engines), plain.profiles)
    manners = Manners(constant(_PATIENCE * slo_s), Sdk())
    return replay(coming, fleet, manners=manners).summary.good_share


def row(options: Namespace, load: float) -> str:
    """Return one row of the table: lines and orders at this load."""
    profile, slo_s = find_profile(options.engine), options.slo
    whole_s = max(job.at_s for job in read_table(options.trace))
    length_s = whole_s / options.stretches
    columns: list[list[float]] = []
    for number in range(options.stretches):
        coming = at_load(options.trace, number * length_s, (number + 1) * length_s, load, profile, slo_s)
        lines = bound(coming, profile, 1, slo_s)
        gates = [
            good_share(coming, profile, slo_s, order, meter)
            for order, meter in (
                ("arrival", PREFILL_TOKENS),
                ("short_first", None),
                ("short_first", PREFILL_TOKENS),
            )
        ]
        columns.append([lines.size_blind, lines.first_come, lines.clairvoyant, *gates])
    means = [fmean(column) for column in zip(*columns, strict=True)]
    ratio, worst = means[-1] / means[0], min(each[-1] / each[0] for each in columns)
    return " | ".join([f"{load:g}", *(f"{mean:.2f}" for mean in means), f"{ratio:.2f}", f"{worst:.2f}"])


def promises(options: Namespace, load: float) -> str:
    """Return one row of the hints: of a gate that queues nothing, by order, which share was kept of how many."""
    profile, shown = find_profile(options.engine), [f"{load:g}"]
    length_s = max(job.at_s for job in read_table(options.trace)) / options.stretches
    for order in ("arrival", "short_first"):
        kept, given = 0.0, 0.0
        for number in range(options.stretches):
            begin_s = number * length_s
            coming = at_load(options.trace, begin_s, begin_s + length_s, load, profile, options.slo)
            case = Case(
                streams=_STREAMS,
                deadline_s=options.slo,
                order=order,
                profile=options.engine,
                seconds=coming[-1].at_s,
            )
            seen = attend(case, iter(coming), Streams(1)).metrics()
            kept, given = kept + seen["kept"] * seen["promises"], given + seen["promises"]
        shown += [f"{kept / given:.3f}" if given else "-", f"{given:.0f}"]
    return " | ".join(shown)


def main() -> None:
    """Print the table for one trace, one engine and one objective."""
    parser = ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("trace", type=within(Path, FILE), help="a file of the Azure LLM inference traces")
    parser.add_argument(
        "--engine",
        type=within(str, PROFILE),
        default="llama3-8b_h100_tp1",
        help="a profile of `millgate engine --profiles`",
    )
    parser.add_argument(
        "--slo",
        type=within(float, ABOVE_0),
        default=2.0,
        help="objective and deadline for the first token, seconds",
    )
    parser.add_argument(
        "--loads",
        type=within(float, ABOVE_0),
        nargs="+",
        default=[1.25, 2.0, 5.0],
        help="multiples of capacity",
    )
    parser.add_argument("--stretches", type=within(int, at_least(1)), default=5, help="parts of equal length")
    parser.add_argument(
        "--hints", action="store_true", help="how many hints hold where nobody is queued, instead"
    )
    options = parser.parse_args()
    sys.stdout.write(_HINTS_HEADER if options.hints else _HEADER)
    for load in options.loads:
        try:
            sys.stdout.write((promises if options.hints else row)(options, load) + "\n")
        except ValueError as error:
            parser.error(f"trace: {error}")


if __name__ == "__main__":
    main()

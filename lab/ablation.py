"""What every refinement changes: the same runs with and without it, paired by case and seed."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from math import sqrt
from multiprocessing import get_context
from statistics import fmean, stdev

from lab.refinements import REFINEMENTS
from lab.suite import Shown
from lab.suites import SUITES
from lab.switches import switched_off

FIRST_SEED = 201
_POINTS = 100.0
_SHARES = (
    "goodput",
    "kept",
    "idle",
    "misses",
    "start_kept",
    "turns",
    "warm",
    "cold",
    "answered",
    "timed_out",
)
_NICE = 15


@dataclass(frozen=True, slots=True)
class Change:
    """A mean difference over runs, without the refinement less with it, and its standard error; shares in points."""

    mean: float
    error: float


@dataclass(frozen=True, slots=True)
class Row:
    """One refinement on one suite."""

    refinement: str
    suite: str
    changes: dict[str, Change]


def ablate(suites: Sequence[str], *, first_seed: int = FIRST_SEED, processes: int = 2) -> Iterator[Row]:
    """Yield a row for every refinement and each of these suites that measures it, in their order."""
    tasks: list[tuple[int | None, str]] = [(None, name) for name in suites]
    for number, refinement in enumerate(REFINEMENTS):
        tasks += [(number, name) for name in refinement.suites if name in suites]
    context = get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=os.nice, initargs=(_NICE,)) as pool:
        calls = [
            (number, suite, first_seed + at) for number, suite in tasks for at in range(SUITES[suite].seeds)
        ]
        runs = pool.map(played, *zip(*calls, strict=True))
        usual = {name: _of_all_seeds(runs, name) for name in suites}
        for task, suite in tasks[len(suites) :]:
            assert task is not None
            pairs = list(zip(_of_all_seeds(runs, suite), usual[suite], strict=True))
            yield Row(REFINEMENTS[task].name, suite, paired_changes(pairs))


def _of_all_seeds(runs: Iterator[list[Shown]], suite: str) -> list[Shown]:
    """Return the next runs, those of one suite under all of its seeds."""
    return [shown for _ in range(SUITES[suite].seeds) for shown in next(runs)]


def played(number: int | None, suite: str, seed: int) -> list[Shown]:
    """Run all cases of a suite under one seed, with one refinement switched off or none."""
    with nullcontext() if number is None else switched_off(REFINEMENTS[number]):
        return [run(seed) for run in SUITES[suite].cases.values()]


def paired_changes(pairs: Sequence[tuple[Shown, Shown]]) -> dict[str, Change]:
    """Return the changes of every metric, each over the pairs that show it twice; a pair is the run without, and the usual one."""
    differences: dict[str, list[float]] = {}
    for without, usual in pairs:
        for name in usual:
            if name in without:
                differences.setdefault(name, []).append(without[name] - usual[name])
    return {name: change(values, name) for name, values in differences.items()}


def change(differences: Sequence[float], name: str) -> Change:
    """Return the mean of paired differences and its standard error, shares as points."""
    unit = _POINTS if name in _SHARES else 1.0
    error = stdev(differences) / sqrt(len(differences)) if len(differences) > 1 else 0.0
    return Change(unit * fmean(differences), unit * error)

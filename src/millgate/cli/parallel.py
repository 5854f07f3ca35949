"""Independent pieces of work in as many processes as there are processors, with a progress bar for people."""

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

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

    from millgate.cli.output import people

    count = min(processes or os.cpu_count() or 1, len(tasks))
    results: list[Any] = [None] * len(tasks)
    with Progress(console=people(), transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task(title, total=len(tasks))
        if count <= 1:
            for place, task in enumerate(tasks):
                results[place] = function(*task)
                progress.advance(bar)
            return results
        with multiprocessing.get_context("spawn").Pool(count) as pool:
            work = [(function, place, task) for place, task in enumerate(tasks)]
            for place, result in pool.imap_unordered(_do, work):
                results[place] = result
                progress.advance(bar)
    return results


def _do(work: tuple[Callable[..., Result], int, tuple[Any, ...]]) -> tuple[int, Result]:
    function, place, task = work
    return place, function(*task)

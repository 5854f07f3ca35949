"""Traces made faster, longer, shorter: every function takes jobs and yields jobs, holding none of them."""

from collections.abc import Iterable, Iterator
from itertools import islice

from millgate.sim.jobs import Job


def faster(jobs: Iterable[Job], factor: float) -> Iterator[Job]:
    """Yield the same jobs with every gap divided by `factor`."""
    if not factor > 0.0:
        raise ValueError(f"factor: must be above 0, got {factor}")
    return (job._replace(at_s=job.at_s / factor) for job in jobs)


def between(jobs: Iterable[Job], begin_s: float, end_s: float) -> Iterator[Job]:
    """Yield what comes within [begin, end), moved so that it starts at 0."""
    for job in jobs:
        if job.at_s >= end_s:
            return
        if job.at_s >= begin_s:
            yield job._replace(at_s=job.at_s - begin_s)


def first(jobs: Iterable[Job], count: int) -> Iterator[Job]:
    """Yield at most that many jobs."""
    return islice(iter(jobs), count)

"""Traces made faster, longer, shorter: every function takes jobs and yields jobs, holding none of them."""

from collections.abc import Callable, Iterable, Iterator
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


def repeated(read: Callable[[], Iterable[Job]]) -> Iterator[Job]:
    """Yield what `read` gives, again and again, each turn beginning one usual gap after the last one ended."""
    shift_s = 0.0
    while True:
        last_s, count = 0.0, 0
        for job in read():
            last_s, count = job.at_s, count + 1
            yield job._replace(at_s=job.at_s + shift_s)
        if count == 0:
            return
        shift_s += last_s + last_s / max(1, count - 1)


def bounded(jobs: Iterable[Job], most_tokens: int) -> Iterator[Job]:
    """Yield the same jobs, each asking for at most so many tokens of answer, and cut to that."""
    return (
        job._replace(max_tokens=most_tokens, output_tokens=min(job.output_tokens, most_tokens))
        for job in jobs
    )

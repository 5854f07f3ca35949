"""What every trace reader shares: how it complains, and that requests come in order."""

from collections.abc import Iterable, Iterator
from math import inf
from pathlib import Path

from millgate.sim.jobs import Job

MOST_TOKENS = 100_000_000
"""No request is longer; a larger number is a column of something else."""


class TraceError(ValueError):
    """A trace file does not say what it should; names file and line."""

    def __init__(self, path: Path, line: int, problem: str) -> None:
        # As they are: an error of another process is built anew from them.
        super().__init__(path, line, problem)

    def __str__(self) -> str:
        path, line, problem = self.args
        return f"{path.name}:{line}: {problem}"


def count_of(text: object, path: Path, line: int) -> int:
    """Return a count of tokens, or raise TraceError."""
    try:
        count = int(str(text))
    except ValueError:
        raise TraceError(path, line, f"{text!r} is not a count of tokens") from None
    if not 0 <= count <= MOST_TOKENS:
        raise TraceError(path, line, f"{count} tokens: must be within 0..{MOST_TOKENS:,}")
    return count


def in_order(jobs: Iterable[Job], path: Path, first_line: int) -> Iterator[Job]:
    """Yield the requests of a file; TraceError where there is none, or one that comes before the one above it."""
    line, at_s = first_line - 1, -inf
    for line, job in enumerate(jobs, first_line):
        if job.at_s < at_s:
            raise TraceError(
                path, line, f"comes {at_s - job.at_s:g} s before the line above it: sort by time"
            )
        at_s = job.at_s
        yield job
    if line < first_line:
        raise TraceError(path, first_line, "there is no request")

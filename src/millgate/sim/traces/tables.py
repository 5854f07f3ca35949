"""Traces in tables, one request a line; how every reader of traces complains, and that requests come in order.

- Azure's public LLM traces of November 2023, `TIMESTAMP,ContextTokens,GeneratedTokens`: Azure/AzurePublicDataset,
  AzureLLMInferenceDataset2023, CC-BY-4.0 (Patel et al., Splitwise, ISCA 2024).
- The trace of 27 clients, `req_time_s,client,prompt_len,output_len`: Ying1123/VTC-artifact, Apache-2.0 (Sheng et al.,
  Fairness in Serving Large Language Models, OSDI 2024).
"""

import csv
from collections.abc import Iterable, Iterator
from datetime import datetime
from math import inf
from pathlib import Path
from typing import TypeVar

import msgspec

from millgate.sim.jobs import Job

_Line = TypeVar("_Line")

_AZURE_COLUMNS = "TIMESTAMP,ContextTokens,GeneratedTokens"
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


def read_lines(path: Path, kind: type[_Line], what: str) -> Iterator[tuple[int, _Line]]:
    """Yield number and content of each line of JSON; TraceError names the one that is no such thing."""
    decode = msgspec.json.Decoder(kind).decode
    with path.open("rb") as lines:
        for number, text in enumerate(lines, start=1):
            try:
                yield number, decode(text)
            except msgspec.DecodeError as error:
                raise TraceError(path, number, f"not a {what}: {error}") from None


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


def read_azure(path: Path) -> Iterator[Job]:
    """Yield the requests of a file in order, from time 0 on; TraceError names the line that makes no sense."""
    first: datetime | None = None
    with path.open(encoding="utf-8-sig") as lines:
        head = next(lines, "").strip()
        if head != _AZURE_COLUMNS:
            raise TraceError(path, 1, f"the columns must be {_AZURE_COLUMNS}, not {head[:80]!r}")
        for number, line in enumerate(lines, start=2):
            cells = line.strip().split(",")
            if len(cells) != 3:
                raise TraceError(path, number, f"expected 3 columns, found {len(cells)}")
            at = _time_of(cells[0], path, number)
            first = first or at
            # An answer of no tokens is an empty one; an engine makes at least one.
            yield Job(
                (at - first).total_seconds(),
                max(1, count_of(cells[1], path, number)),
                max(1, count_of(cells[2], path, number)),
            )


def _time_of(text: str, path: Path, number: int) -> datetime:
    try:
        # Seven decimals; Python reads six.
        return datetime.fromisoformat(text[:26])
    except ValueError:
        raise TraceError(path, number, f"{text!r} is not a time") from None


def read_clients27(path: Path) -> Iterator[Job]:
    """Yield the requests of a file in order; the client's number is the tenant."""
    with path.open(encoding="utf-8", newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines), start=2):
            try:
                at_s = float(row["req_time_s"])
                client, prompt, output = row["client"], row["prompt_len"], row["output_len"]
            except (KeyError, TypeError, ValueError) as error:
                raise TraceError(path, number, f"not a request: {error}") from None
            yield Job(
                at_s,
                max(1, count_of(prompt, path, number)),
                max(1, count_of(output, path, number)),
                tenant=f"client-{client}",
            )

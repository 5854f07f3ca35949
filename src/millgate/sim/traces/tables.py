"""Traces in tables, one request a line; how every reader of traces complains, and that requests come in order.

- Azure's public LLM traces of November 2023, `TIMESTAMP,ContextTokens,GeneratedTokens`: Azure/AzurePublicDataset,
  AzureLLMInferenceDataset2023, CC-BY-4.0 (Patel et al., Splitwise, ISCA 2024).
- The trace of 27 clients, `req_time_s,client,prompt_len,output_len`: Ying1123/VTC-artifact, Apache-2.0 (Sheng et al.,
  Fairness in Serving Large Language Models, OSDI 2024).

Columns may stand in any order and beside others. `tenant`, `lane`, `model` and `max_tokens` are read where a file has them.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from millgate.sim.jobs import Job

_Line = TypeVar("_Line")

_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_CLIENTS27 = ("req_time_s", "client", "prompt_len", "output_len")
MOST_TOKENS = 100_000_000
"""No request is longer; a larger number is a column of something else."""
# Seconds since 1970 of the year 5138; a larger number has another unit.
_MOST_S = 1e11
_LONGEST_GAP_S = 366 * 86_400.0  # engines are looked at each second; a longer gap is one between two clocks


class TraceError(ValueError):
    """A trace file does not say what it should; names file and line, 0 for no line."""

    def __init__(self, path: Path, line: int, problem: str) -> None:
        # As they are: an error of another process is built anew from them.
        super().__init__(path, line, problem)

    def __str__(self) -> str:
        path, line, problem = self.args
        return f"{path.name}:{line}: {problem}" if line else f"{path.name}: {problem}"


def read_lines(path: Path, kind: type[_Line], what: str) -> Iterator[tuple[int, _Line]]:
    """Yield number and content of each line of JSON that is not blank; TraceError names the one that is no such thing."""
    decode = msgspec.json.Decoder(kind).decode
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if text := line.removeprefix(b"\xef\xbb\xbf").strip():
                try:
                    yield number, decode(text)
                except msgspec.DecodeError as error:
                    raise TraceError(path, number, f"not a {what}: {error}") from None


def in_order(jobs: Iterable[tuple[int, Job]], path: Path) -> Iterator[Job]:
    """Yield the requests of a file, given with their lines, from time 0 on; TraceError where there is none, or one that comes before the one above it."""
    begins_s: float | None = None
    last_s = 0.0
    for line, job in jobs:
        begins_s = job.at_s if begins_s is None else begins_s
        at_s = job.at_s - begins_s
        if at_s < last_s:
            raise TraceError(path, line, f"comes {last_s - at_s:g} s before the line above it: sort by time")
        if at_s - last_s > _LONGEST_GAP_S:
            raise TraceError(
                path, line, f"comes {at_s - last_s:g} s after the line above it, more than a year"
            )
        last_s = at_s
        yield job._replace(at_s=at_s) if begins_s else job
    if begins_s is None:
        raise TraceError(path, 1, "there is no request")


def read_table(path: Path) -> Iterator[Job]:
    """Yield the requests of a file in order, from time 0 on; TraceError names the line that makes no sense."""
    try:
        yield from in_order(_rows(path), path)
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(path, 1, f"not a table in UTF-8, unpack or convert it: {error}") from None


def _rows(path: Path) -> Iterator[tuple[int, Job]]:
    began: datetime | None = None
    with path.open(encoding="utf-8-sig", newline="") as lines:
        rows = csv.reader(lines)
        head = next(rows, [])
        names = next((each for each in (_AZURE, _CLIENTS27) if set(each) <= set(head)), None)
        if names is None:
            known = f"{','.join(_AZURE)} or {','.join(_CLIENTS27)}"
            raise TraceError(path, 1, f"the columns must be {known}, not {','.join(head)[:80]!r}")
        for cells in rows:
            if not cells:
                continue
            line, row = rows.line_num, dict(zip(head, cells, strict=False))
            if len(cells) != len(head):
                raise TraceError(path, line, f"expected {len(head)} columns, found {len(cells)}")
            at = _time_of(row[names[0]], path, line)
            if isinstance(at, datetime):
                began = began or at
                at = (at - began).total_seconds()
            yield line, _job(at, row, names, path, line)


def _job(at_s: float, row: Mapping[str, str], names: tuple[str, ...], path: Path, line: int) -> Job:
    # An answer of no tokens is an empty one; an engine makes at least one.
    prompt = max(1, _count_of(row[names[-2]], path, line))
    output = max(1, _count_of(row[names[-1]], path, line))
    most, tenant = row.get("max_tokens"), row.get("tenant", "")
    if not tenant and names is _CLIENTS27:
        tenant = f"client-{row['client']}"
    bound = max(1, _count_of(most, path, line)) if most else None
    lane, model = row.get("lane") or None, row.get("model", "")
    return Job(at_s, prompt, output, tenant, lane, bound, adapter=model)


def _count_of(text: str, path: Path, line: int) -> int:
    try:
        count = int(text)
    except ValueError:
        raise TraceError(path, line, f"{text!r} is not a count of tokens") from None
    if not 0 <= count <= MOST_TOKENS:
        raise TraceError(path, line, f"{count} tokens: must be within 0..{MOST_TOKENS:,}")
    return count


def _time_of(text: str, path: Path, line: int) -> datetime | float:
    """Return a date with its zone (UTC where none is written), or a number of seconds since any time."""
    try:
        at = datetime.fromisoformat(text) if ":" in text else float(text)
    except ValueError:
        raise TraceError(path, line, f"{text!r} is not a time: write a date, or seconds") from None
    if isinstance(at, datetime):
        return at if at.tzinfo else at.replace(tzinfo=UTC)
    if not abs(at) < _MOST_S:
        raise TraceError(path, line, f"{text!r} is not a time in seconds")
    return at

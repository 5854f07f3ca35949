"""Read an Azure LLM inference trace row by row: when each request came, from which tenant, for how much.

The format is that of the AzureLLMInferenceDataset2023 (Azure/AzurePublicDataset): a header line and rows of
TIMESTAMP, ContextTokens, GeneratedTokens in order of time. Nothing is kept: an hour or a year costs the same memory.
"""

import csv
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

HEADER = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MAX_TOKENS = 10_000_000
"""More tokens than any model's context in one row is a broken file, not a long prompt."""


class TraceRow(NamedTuple):
    """One request of a trace: when it came after the slice's start, and its true sizes in tokens."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


class ReplayTraceError(ValueError):
    """A trace cannot be used; the text names file, line and field."""


def read_trace(path: Path, *, start_s: float = 0.0, duration_s: float | None = None) -> Iterator[TraceRow]:
    """Yield the rows of one slice in order, `at_s` counted from the slice's start.

    The slice begins `start_s` after the file's first row and lasts `duration_s` (None: to the end). Raises
    TraceError at the first row that is not right, and when the slice has no row at all.
    """
    end_s = None if duration_s is None else start_s + duration_s
    found = False
    for row in _rows(path):
        if end_s is not None and row.at_s >= end_s:
            break
        if row.at_s >= start_s:
            found = True
            yield row._replace(at_s=row.at_s - start_s)
    if not found:
        asked = "its end" if end_s is None else f"{end_s:g} s"
        raise ReplayTraceError(f"{path}: no request between {start_s:g} s and {asked} of this trace")


def _rows(path: Path) -> Iterator[TraceRow]:
    """Yield every row, `at_s` counted from the file's first."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield from _checked(path, csv.reader(file))
    except OSError as error:
        raise ReplayTraceError(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ReplayTraceError(f"{path}: not a CSV text file: {error}") from error


def _checked(path: Path, lines: Iterator[list[str]]) -> Iterator[TraceRow]:
    _expect_header(path, next(lines, []))
    first: datetime | None = None
    previous_s = 0.0
    for number, fields in enumerate(lines, start=2):
        if not fields:
            continue
        stamp, prompt_tokens, output_tokens = _parsed(f"{path}: line {number}", fields)
        first = first or stamp
        at_s = (stamp - first).total_seconds()
        if at_s < previous_s:
            raise ReplayTraceError(f"{path}: line {number}: TIMESTAMP {fields[0]!r} is before the row above")
        previous_s = at_s
        yield TraceRow(at_s, prompt_tokens, output_tokens)


def _expect_header(path: Path, fields: list[str]) -> None:
    if tuple(name.strip() for name in fields) != HEADER:
        raise ReplayTraceError(f"{path}: line 1: the header must be {','.join(HEADER)}")


def _parsed(where: str, fields: list[str]) -> tuple[datetime, int, int]:
    if len(fields) != len(HEADER):
        raise ReplayTraceError(f"{where}: {len(fields)} fields, expected {len(HEADER)} ({','.join(HEADER)})")
    try:
        stamp = datetime.fromisoformat(fields[0].strip()).replace(tzinfo=None)
    except ValueError as error:
        raise ReplayTraceError(f"{where}: TIMESTAMP {fields[0]!r} is not a date and time") from error
    return stamp, _tokens(where, HEADER[1], fields[1]), _tokens(where, HEADER[2], fields[2])


def _tokens(where: str, name: str, text: str) -> int:
    try:
        tokens = int(text)
    except ValueError as error:
        raise ReplayTraceError(f"{where}: {name} {text!r} is not a whole number") from error
    if not 0 < tokens <= MAX_TOKENS:
        raise ReplayTraceError(f"{where}: {name} is {tokens}, must be within 1..{MAX_TOKENS}")
    return tokens

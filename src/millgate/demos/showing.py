"""What a demo shows: progress and notes on stderr, its result as a table or as exactly one line of JSON on stdout."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

TABLE_WIDTH = 150
"""Of a table that goes to a file or a pipe, where no terminal says how wide it is."""


Advance = Callable[..., None]
"""Tells the progress bar that one more is done, or so many."""


class Show:
    """One demo's output. With `as_json` even the table goes to stderr, and stdout gets the one line."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._notes = Console(stderr=True)

    def note(self, text: str) -> None:
        """Say something on stderr."""
        self._notes.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Advance]:
        """Show a bar on stderr while the block runs; `total` None when it is unknown."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        # Twice a second: the bar shares two cores with the engine that it watches.
        with Progress(*columns, console=self._notes, refresh_per_second=2) as progress:
            yield partial(progress.advance, progress.add_task(what, total=total))

    def result(self, table: Table, record: dict[str, Any], notes: Iterable[str] = ()) -> None:
        """Print the result: the table with its footnotes, and under `as_json` the record as one line."""
        console = Console(stderr=self._as_json)
        if not console.is_terminal:
            console = Console(stderr=self._as_json, width=TABLE_WIDTH)
        console.print(table)
        for line in notes:
            console.print(line, highlight=False, markup=False)
        if self._as_json:
            sys.stdout.write(json.dumps(record, separators=(",", ":")) + "\n")
            sys.stdout.flush()


def table_of(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Build a table: the first column names the row, the others are numbers."""
    table = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table


def percent(value: float) -> str:
    """Write a share, as in 4.7 %."""
    return f"{value * 100:.1f} %"


def seconds(value: float | None) -> str:
    """Write a time, a dash for none."""
    return "-" if value is None else f"{value:.2f} s"


def counted(words: dict[str, int]) -> str:
    """Write counts by word, a dash for none."""
    return ", ".join(f"{word} {count:,}" for word, count in words.items()) or "-"

"""The requests of a measured run: what was asked when, and what came when."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from millgate.sim.measured.tables import MeasuredError


class Served(NamedTuple):
    """One measured request; times are seconds from the first arrival."""

    prompt_tokens: int
    output_tokens: int
    queued_s: float
    first_token_s: float
    last_token_s: float


def read_requests(path: Path) -> tuple[tuple[Served, ...], int]:
    """Return the requests by arrival, and how many ran together at most; MeasuredError names a line that is none."""
    rows: list[Served] = []
    edges: list[tuple[float, int]] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                rows.append(_served(row))
                began = row.get("scheduled_ts")
                edges.append((rows[-1].queued_s if began is None else float(began), 1))
                edges.append((rows[-1].last_token_s, -1))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise MeasuredError(f"{path.name}:{number}: not a request: {error}") from None
    if len(rows) < 2:
        raise MeasuredError(f"{path.name}: holds {len(rows) or 'no'} request; its two halves need one each")
    rows.sort(key=lambda served: served.queued_s)
    zero = rows[0].queued_s
    moved = tuple(Served(row[0], row[1], row[2] - zero, row[3] - zero, row[4] - zero) for row in rows)
    return moved, _most_together(edges)


def _served(row: Mapping[str, Any]) -> Served:
    queued, first, last = [float(row[key]) for key in ("queued_ts", "first_token_ts", "last_token_ts")]
    served = Served(int(row["input_toks"]), int(row["output_toks"]), queued, first, last)
    if served.prompt_tokens < 1 or served.output_tokens < 1:
        raise ValueError(
            f"input_toks {served.prompt_tokens}, output_toks {served.output_tokens}: at least 1 each"
        )
    if not queued <= first <= last < float("inf"):
        raise ValueError("queued_ts, first_token_ts and last_token_ts are not in this order, or no times")
    return served


def _most_together(edges: Sequence[tuple[float, int]]) -> int:
    most = now = 0
    for _, change in sorted(edges):
        now += change
        most = max(most, now)
    return most

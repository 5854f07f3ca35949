"""Azure's public LLM traces of November 2023: `TIMESTAMP,ContextTokens,GeneratedTokens`, one request a line.

Source: Azure/AzurePublicDataset, AzureLLMInferenceDataset2023, CC-BY-4.0 (Patel et al., Splitwise, ISCA 2024).
"""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from millgate.sim.jobs import Job
from millgate.sim.traces.contract import TraceError, count_of

_COLUMNS = "TIMESTAMP,ContextTokens,GeneratedTokens"


def read_azure(path: Path) -> Iterator[Job]:
    """Yield the requests of a file in order, from time 0 on; TraceError names the line that makes no sense."""
    first: datetime | None = None
    with path.open(encoding="utf-8-sig") as lines:
        head = next(lines, "").strip()
        if head != _COLUMNS:
            raise TraceError(path, 1, f"the columns must be {_COLUMNS}, not {head[:80]!r}")
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

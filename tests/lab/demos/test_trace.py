"""The trace reader: slices in order, and every bad row named by line and field."""

import os
import re
from pathlib import Path

import pytest
from lab.demos.trace import ReplayTraceError, TraceRow, read_trace

GOOD = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.6805900,396,109
2023-11-16 18:15:56.6805900,879,55
"""


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_rows_count_time_from_the_first_row(tmp_path: Path) -> None:
    rows = list(read_trace(_file(tmp_path, GOOD)))

    assert rows == [TraceRow(0.0, 374, 44), TraceRow(4.0, 396, 109), TraceRow(10.0, 879, 55)]


def test_a_slice_counts_time_from_its_own_start_and_excludes_its_end(tmp_path: Path) -> None:
    rows = list(read_trace(_file(tmp_path, GOOD), start_s=3.0, duration_s=7.0))

    assert rows == [TraceRow(1.0, 396, 109)]


def test_a_bad_row_after_the_slice_is_never_read(tmp_path: Path) -> None:
    rows = list(read_trace(_file(tmp_path, GOOD + "nonsense\n"), duration_s=5.0))

    assert len(rows) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "line 1: the header must be TIMESTAMP"),
        ("time,in,out\n", "line 1: the header must be"),
        (GOOD + "2023-11-16 18:16:00,1\n", "line 5: 2 fields, expected 3"),
        (GOOD + "yesterday,1,1\n", "line 5: TIMESTAMP 'yesterday' is not a date"),
        (GOOD + "2023-11-16 18:16:00,many,1\n", "line 5: ContextTokens 'many' is not a whole number"),
        (GOOD + "2023-11-16 18:16:00,1,1.5\n", "line 5: GeneratedTokens '1.5' is not a whole number"),
        (GOOD + "2023-11-16 18:16:00,1,0\n", "line 5: GeneratedTokens is 0, must be within 1..10000000"),
        (GOOD + "2023-11-16 18:16:00,-4,1\n", "line 5: ContextTokens is -4, must be within"),
        (
            GOOD + "2023-11-16 18:15:00,1,1\n",
            "line 5: TIMESTAMP '2023-11-16 18:15:00' is before the row above",
        ),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no request between 0 s and its end"),
    ],
)
def test_what_is_wrong_is_named_by_line_and_field(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ReplayTraceError, match=re.escape(expected)):
        list(read_trace(_file(tmp_path, text)))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReplayTraceError, match=r"absent\.csv: cannot be read"):
        list(read_trace(tmp_path / "absent.csv"))


def test_a_binary_file_is_refused_as_such(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b"\xff\xfe\x00")

    with pytest.raises(ReplayTraceError, match="not a CSV text file"):
        list(read_trace(path))


@pytest.mark.parametrize(("name", "requests"), [("conv", 19_366), ("code", 8_819)])
def test_the_published_traces_are_read_whole(name: str, requests: int) -> None:
    """Row counts as published; the hour of each is under 3,600 s."""
    root = Path(os.environ.get("MILLGATE_SHARED", Path(__file__).parents[3] / "shared"))
    path = root / "data" / "traces" / f"AzureLLMInferenceTrace_{name}.csv"
    if not path.exists():
        pytest.skip(f"{path} is absent: the Azure traces are not part of the repository")

    rows = list(read_trace(path))

    assert len(rows) == requests
    assert 3_400 < rows[-1].at_s < 3_600

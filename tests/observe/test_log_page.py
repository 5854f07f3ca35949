"""The page of logs has every event that the process tells: an alert on a log line is written by that page."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_TOLD = re.compile(r"log\.(?:info|warning|error)\(\s*\"([^\"]+)\"")


def test_an_operator_finds_every_line_of_the_process_in_the_table() -> None:
    page = (ROOT / "docs/how-to/logs-and-why.md").read_text(encoding="utf-8")
    told = {
        event
        for file in (ROOT / "src/millgate").rglob("*.py")
        for event in _TOLD.findall(file.read_text(encoding="utf-8"))
    }

    assert len(told) > 20
    assert [event for event in sorted(told) if f"`{event}`" not in page] == []

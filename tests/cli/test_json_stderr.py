"""What others than the log write to a server's stderr is JSON too, line by line, and quotes nothing."""

import json
import subprocess
import sys
from typing import Any

import pytest

BEGIN = "from millgate.cli.json_stderr import take_over; take_over(); "


def written(code: str) -> tuple[int, list[dict[str, Any]]]:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code], capture_output=True, text=True, check=False, timeout=30
    )
    return done.returncode, [json.loads(line) for line in done.stderr.splitlines()]


@pytest.mark.parametrize(
    ("code", "exit_code", "expected"),
    [
        ("raise ValueError('secret')", 1, {"event": "uncaught failure", "kind": "ValueError"}),
        (
            "import threading; t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()",
            0,
            {"event": "uncaught failure", "kind": "ZeroDivisionError"},
        ),
        (
            "import warnings; warnings.warn('two\\nlines')",
            0,
            {"event": "library message", "logger": "py.warnings", "level": "warning"},
        ),
        (
            "import logging; logging.getLogger('asyncio').error('slow')",
            0,
            {"event": "library message", "logger": "asyncio", "message": "slow", "level": "error"},
        ),
    ],
)
def test_a_failure_a_warning_and_a_library_are_one_line_of_json_each(
    code: str, exit_code: int, expected: dict[str, str]
) -> None:
    ended, records = written(code)

    assert ended == exit_code
    (record,) = records
    assert expected.items() <= record.items()
    assert "secret" not in json.dumps(record)
    assert record["timestamp"].endswith("Z")


def test_a_failure_is_told_by_place() -> None:
    _, (record,) = written("raise ValueError('secret')")

    assert record["where"] == ["<string>:1 <module>"]

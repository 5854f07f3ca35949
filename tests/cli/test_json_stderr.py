"""What others than the log write to a server's stderr is JSON too, line by line, and quotes nothing."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from faults.process import full_pipe

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


@pytest.mark.parametrize(
    "code",
    [
        "import logging; logging.getLogger('uvloop').warning('x')",
        "import warnings; warnings.warn('x')",
        "import sys; sys.excepthook(ValueError, ValueError(), None)",
        "from millgate.cli.output import print_error; print_error('x', as_json=True)",
    ],
)
def test_a_reader_that_has_stopped_holds_neither_who_writes_nor_the_end(code: str) -> None:
    """A library's warning held the loop, and with it every request, for as long as the log's reader was being restarted."""
    reader, writer = full_pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-c", BEGIN + code + "; print('went on', flush=True)"],
            stdout=subprocess.PIPE,
            stderr=writer,
            check=False,
            timeout=30,
        )
    finally:
        os.close(reader)
        os.close(writer)
    assert (done.returncode, done.stdout) == (0, b"went on\n")

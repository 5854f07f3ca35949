"""The size of the core has a command: lines, numeric constants, and the files that an arrival visits."""

import subprocess
import sys
from pathlib import Path

import pytest
from lab.core_size import code_lines, lines_and_constants, walks
from lab.interpreted import is_compiled

_ROOT = Path(__file__).resolve().parents[2]


def test_every_line_and_every_named_number_of_the_core_counts() -> None:
    files = [*(_ROOT / "src/millgate/core").rglob("*.py")]
    (lines, code, constants), of_fleet = lines_and_constants(fleet=False), lines_and_constants(fleet=True)

    assert lines + of_fleet[0] == sum(file.read_text().count("\n") for file in files)
    assert lines / 2 < code < lines
    assert 50 < constants < lines


def test_lines_of_code_are_those_without_words_about_it() -> None:
    text = '"""What it is.\n\nMore of it.\n"""\n\n# why\nONE = 1  # one\n"""Told."""\n\ndef two() -> str:\n    """Say."""\n    return """a\nb"""\n'

    assert code_lines(text) == 4


def test_the_part_that_only_a_fleet_needs_is_counted_apart() -> None:
    room = [*(_ROOT / "src/millgate/core/routing").rglob("*.py")]
    lines, _, constants = lines_and_constants(fleet=True)

    assert lines > sum(file.read_text().count("\n") for file in room)
    assert 5 < constants < 50


def test_an_arrival_visits_the_judge_and_a_refusal_its_line_too() -> None:
    if is_compiled():
        pytest.skip("compiled calls are not seen; the command runs a copy then")
    visited = dict(walks())

    assert list(visited) == ["admitted at once", "queued", "refused", "back on time"]
    for files in visited.values():
        assert files[0] == "governor/governor"
        assert "governor/assess" in files
        assert len(files) == len(set(files))
    assert "tickets/appointment" in visited["refused"]
    assert "tickets/appointment" not in visited["admitted at once"]


def test_the_command_prints_the_figures() -> None:
    command = [sys.executable, "-m", "lab", "core"]
    printed = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True).stdout

    assert f"lines: {lines_and_constants(fleet=False)[0]}, and " in printed
    assert printed.count("files visited, ") == 4

"""What a demo prints: one line of JSON on stdout, everything else on stderr."""

import json

import pytest

from millgate.demos.showing import Show, counted, percent, seconds, table_of

TABLE = table_of("A run", ("load", "good"), [("2x", "50.0 %")])


def test_json_is_exactly_one_line_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    show = Show(as_json=True)
    with show.progress("working", 2) as advance:
        advance()
        advance()

    show.result(TABLE, {"good": 0.5}, ["a note"])

    output = capsys.readouterr()
    assert output.out.count("\n") == 1
    assert json.loads(output.out) == {"good": 0.5}
    assert "A run" in output.err
    assert "a note" in output.err


def test_without_json_the_table_is_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    Show(as_json=False).result(TABLE, {"good": 0.5}, ["a note"])

    output = capsys.readouterr()
    assert "50.0 %" in output.out
    assert "a note" in output.out
    assert output.err == ""


def test_a_wide_table_is_not_squeezed_when_nobody_says_how_wide_the_output_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Show(as_json=False).result(table_of("wide", ["x" * 60, "y" * 60], [["1", "2"]]), {})

    assert "y" * 60 in capsys.readouterr().out


def test_numbers_read_as_people_write_them() -> None:
    assert percent(0.0473) == "4.7 %"
    assert (seconds(None), seconds(1.234)) == ("-", "1.23 s")
    assert (counted({}), counted({"saturated": 1234, "too_late": 1})) == ("-", "saturated 1,234, too_late 1")

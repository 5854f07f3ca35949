"""The simulator's commands: one line of JSON, plain errors, exit codes."""

import json
from pathlib import Path

import pytest

from millgate.cli.main import main


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> object:
    assert main([*arguments, "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    return json.loads(lines[0])


def test_the_bracket_of_a_load_is_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    bounds = answer(capsys, "sim", "bound", "azure_conversation", "--rate", "40", "--lasts", "20s")
    assert isinstance(bounds, dict)

    assert 0.0 < bounds["best"] <= bounds["upper"] <= 1.0


def test_sizes_come_with_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    advice = answer(capsys, "size", "--rate", "50", "--latency", "4s")
    assert isinstance(advice, list)

    assert advice[0]["square_root"] == advice[0]["twice"] == 200.0
    assert all(each["why"] for each in advice)


def test_sizes_of_quantiles_are_drawn_and_written_for_people(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "size.svg"
    quantiles = ["--latency-p50", "2s", "--latency-p95", "12s"]
    assert main(["size", "--rate", "5", *quantiles, "--svg", str(picture)]) == 0

    table = capsys.readouterr().err
    assert "twice the load" in table
    assert "cv 1.5" in table
    assert picture.read_text().startswith("<svg")


def test_a_replay_tells_what_came_of_it_and_how_fast(capsys: pytest.CaptureFixture[str]) -> None:
    result = answer(capsys, "sim", "replay", "azure_conversation", "--requests", "200")
    assert isinstance(result, dict)

    assert result["outcomes"] == {"good": 200}
    assert result["speed"]["requests_per_cpu_s"] > 0


def test_an_experiment_file_runs_in_processes_and_writes_its_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "gate.yaml").write_text('engines: [{name: a, url: "http://127.0.0.1:1", max_inflight: 8}]\n')
    sim = tmp_path / "sim.yaml"
    sim.write_text("sim: {gate: gate.yaml, rates: [2], lasts: 8s, warm_up: 1s, policies: [gate], seeds: 2}\n")
    page = tmp_path / "report.html"
    result = answer(capsys, "sim", "run", str(sim), "--html", str(page), "--processes", "2")
    assert isinstance(result, dict)

    assert result["places"][0]["metrics"]["good_share"]["seeds"] == 2
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["sim", "run", "magic"],
            "'magic' is no YAML file; the studies of docs/ run from a checkout: python -m lab run",
        ),
        (["sim", "run", "absent.yaml"], "absent.yaml: cannot be read"),
        (["sim", "bound", "magic"], "trace: 'magic' is neither"),
        (["sim", "bound", "arena", "--slo", "0s"], "--slo: must be above 0"),
        (["sim", "replay", "arena", "--policy", "magic"], "--policy: 'magic' is not one of no gate"),
        (["sim", "validate", "--measured", "absent"], "--measured: absent: has no file that ends in"),
        (["size", "--rate", "5", "--latency", "soon"], "--latency: 'soon' is not a duration"),
        (["size", "--rate", "5"], "give --latency, or both --latency-p50 and --latency-p95"),
        (["size", "--rate", "5", "--latency", "1s", "--latency-p95", "2s"], "give --latency, or both"),
        (
            ["size", "--rate", "5", "--latency-p50", "2s", "--latency-p95", "1s"],
            "--latency-p95: must be above the p50 of 2 s",
        ),
        (
            ["size", "--rate", "5", "--latency", "1s", "--profile", "magic"],
            "--profile: 'magic' is not one of",
        ),
    ],
)
def test_what_is_wrong_is_named_and_exits_with_two(
    capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()

    assert complaint in captured.err
    assert captured.out == ""

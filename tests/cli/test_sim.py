"""The simulator's commands: one line of JSON, plain errors, exit codes."""

import json
import os
from pathlib import Path

import pytest

from millgate.cli.exits import CommandError
from millgate.cli.main import main
from millgate.cli.sim import in_parallel


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> object:
    assert main([*arguments, "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    return json.loads(lines[0])


def test_the_bracket_of_a_load_is_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    bounds = answer(capsys, "sim", "bound", "azure_conversation", "--rate", "40", "--lasts", "20s")
    assert isinstance(bounds, dict)

    assert 0.0 < bounds["best"] <= bounds["upper"] <= 1.0


@pytest.mark.parametrize("command", ["bound", "replay"])
def test_a_rate_without_end_is_refused(capsys: pytest.CaptureFixture[str], command: str) -> None:
    """Its requests came at one moment, and the last of them never."""
    assert main(["sim", command, "short", "--rate", "inf"]) == 2
    assert "--rate" in capsys.readouterr().err


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
    (tmp_path / "gate.yaml").write_text(
        'engines: [{name: a, url: "http://127.0.0.1:1", max_inflight: 8, profile: demo}]\n'
    )
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
        (["size", "--rate", "1000000", "--latency", "1h"], "3,600,000,000 streams: at most 1,000,000"),
        (
            [
                "size",
                "--rate",
                "5",
                "--latency",
                "1s",
                "--profile",
                "llama3-8b_h100_tp1",
                "--prompt-tokens",
                "5e5",
            ],
            "--prompt-tokens: 500,250 tokens do not fit into the 420,659 of llama3-8b_h100_tp1",
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


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def test_a_bad_line_in_the_midst_of_a_trace_ends_an_experiment_in_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error could not be built anew from another process, and the command stood still for good."""
    (tmp_path / "gate.yaml").write_text(
        "engines: [{name: a, url: 'http://127.0.0.1:1', max_inflight: 4, profile: demo}]"
    )
    (tmp_path / "t.csv").write_text(AZURE + "2023-11-16 18:00:00.0,9,9\n2023-11-16 18:00:01.0,9\n")
    experiment = tmp_path / "e.yaml"
    experiment.write_text("sim: {gate: gate.yaml, trace: t.csv, warm_up: 0s}")

    assert main(["sim", "run", str(experiment), "--seeds", "1", "--processes", "2"]) == 2
    assert "sim.trace: t.csv:3: expected 3 columns, found 2" in capsys.readouterr().err


def test_requests_that_come_all_at_once_are_counted_by_the_time_until_the_last_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four hundred requests of one instant were asked at 400,000,000,000 a second, and served at 359,000,000,000."""
    trace = tmp_path / "t.csv"
    trace.write_text(AZURE + "2023-11-16 18:00:00.0,100,100\n" * 3)

    assert main(["sim", "replay", str(trace), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["duration_s"] == told["total_s"]["most"] > 0.1
    assert told["goodput_per_s"] == 3 / told["duration_s"]


def test_a_process_that_is_killed_ends_the_command() -> None:
    """The others waited for its result for good, as where the kernel had no memory left for it."""
    with pytest.raises(CommandError, match="was killed, perhaps for want of memory"):
        in_parallel(os._exit, [(9,), (9,), (9,)], "dying", 2)


def test_a_report_that_cannot_be_written_costs_no_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ended without a word of what it had computed, perhaps for an hour."""
    (tmp_path / "gate.yaml").write_text("engines: [{name: a, url: 'http://127.0.0.1:1', profile: demo}]")
    experiment = tmp_path / "e.yaml"
    experiment.write_text("sim: {gate: gate.yaml, rates: [2], lasts: 5s, warm_up: 0s, policies: [gate]}")
    page = str(tmp_path / "absent" / "report.html")

    arguments = ["sim", "run", str(experiment), "--seeds", "1", "--processes", "1", "--json"]
    assert main([*arguments, "--html", page]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["places"]
    assert "--html: " in captured.err

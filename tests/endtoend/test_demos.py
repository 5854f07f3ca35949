"""The demos whole, on real processes: counts and orders only, for the machine is shared."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WITHIN_S = 120


def _demo(*arguments: str) -> dict[str, Any]:
    """Run a demonstration of the laboratory and return the one line that it prints."""
    return _record("lab", "demo", *arguments)


def _record(*words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", *words, "--json"],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def test_a_burst_runs_one_and_tells_nineteen_when_to_come_back() -> None:
    result = _demo("burst")

    hints = result.pop("hints")
    assert result == {"max_inflight": 1, "executed": 1, "yielded": 19, "inflight_after": 0}
    assert len(hints) == 19
    assert all(0.1 <= hint <= 60.0 for hint in hints)
    assert len(set(hints)) == 19


def test_those_who_come_back_when_told_are_served_one_at_a_time_in_order() -> None:
    result = _demo("burst", "--retries", "--users", "5", "--service", "6s")

    assert result["served"] == result["executed"] == 5
    assert result["max_inflight"] == 1
    assert sorted(result["attempts"]) == [1, 2, 2, 2, 2]
    assert result["order_kept"] is True
    assert result["inflight_after"] == 0


def test_at_twice_the_capacity_the_gate_serves_more_and_wastes_less() -> None:
    run = (
        "--load",
        "2",
        "--time-scale",
        "10",
        "--patience",
        "10s",
        "--refreshes",
        "1",
        "--run-patiences",
        "4",
    )
    result = _demo("poison", *run)

    without, gated = result["runs"]
    assert (without["gate"], gated["gate"]) == (False, True)
    assert gated["good_share"] > without["good_share"]
    assert gated["wasted_token_share"] < 0.1 < without["wasted_token_share"]
    # Never above the cap but shortly after a hang-up: an answer that ends while the gauge is being read hides one
    # departed client, so one permit may end early. Without the gate it is hundreds.
    assert gated["peak_inflight"] <= 16 + 2 < without["peak_inflight"]
    assert sum(gated["yields"].values()) > 0
    assert gated["requests"] == sum(gated["endings"].values())


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Six requests a second for 21 s, 1,000 prompt and 100 output tokens each: more than the engine can do."""
    path = tmp_path / "trace.csv"
    rows = [f"2024-01-01 00:00:{at // 6:02d}.{at % 6}00000,1000,100" for at in range(126)]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_a_trace_is_replayed_without_and_with_the_gate(trace: Path) -> None:
    result = _demo(
        "replay", str(trace), "--rate-scale", "4", "--for", "20s", "--ttft-slo", "3s", "--time-scale", "10"
    )

    assert result["slice"] == {
        "requests": 120,
        "lasts_s": 20.0,
        "prompt_tokens": 120_000,
        "output_tokens": 12_000,
    }
    assert [run["gate"] for run in result["runs"]] == [False, True]
    assert result["runs"][1]["peak_inflight"] <= 64
    for row in result["runs"]:
        assert row["requests"] == sum(row["endings"].values()) == 120
        assert row["good"] > 0


def test_a_bad_trace_names_line_and_field(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00,-1,5\n", encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "-m", "lab", "demo", "replay", str(path), "--json"],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )

    assert done.returncode == 2
    assert done.stdout == ""
    assert "line 2: ContextTokens is -1" in " ".join(done.stderr.split())


def test_the_demo_compares_what_stands_before_the_engine_under_a_burst_of_requests() -> None:
    """One runs and the others are refused at once where nothing may be queued and users do not return."""
    burst = ("--at-once", "20", "--cap", "1", "--max-queue", "0", "--retries", "0", "--ttft-slo", "60s")
    result = _record("millgate", "demo", *burst, "--patience", "60s", "--peer", "none", "--time-scale", "10")

    assert list(result["runs"]) == ["no_gate", "gate"]
    gate = result["runs"]["gate"]
    assert (gate["endings"], gate["peak_inflight"]) == ({"refused": 19, "whole": 1}, 1)
    assert gate["wasted_share"] == 0.0

"""The commands of the laboratory: one line of JSON, plain errors, exit codes."""

import json

import pytest
from lab.commands import carry_out

SHORT_HINTS = [
    "run",
    "hints",
    "--seeds",
    "1",
    "--processes",
    "1",
    "--set",
    "seconds=25",
    "--set",
    "deadline_s=4",
]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> object:
    assert carry_out([*arguments, "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    return json.loads(lines[0])


def test_every_experiment_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    listed = answer(capsys, "list")
    assert isinstance(listed, list)
    names = {each["name"] for each in listed}

    assert {"no_gate_vs_gate", "retry_storm", "hint_quality", "heavy_tail", "telemetry_delay"} < names
    assert {"abort_lag", "sizing"} < names


def test_knobs_of_an_experiment_are_set_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    result = answer(capsys, *SHORT_HINTS, "--set", "streams=2")
    assert isinstance(result, dict)

    assert {place["x"] for place in result["places"]} == {1.3, 2.0, 3.0}


def test_other_seeds_give_other_runs_of_the_same_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    usual, other, again = (answer(capsys, *SHORT_HINTS, "--first-seed", seed) for seed in ("1", "9", "9"))

    assert usual != other
    assert other == again


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["hints", "--set", "streams"], "--set: 'streams' is not KNOB=VALUE"),
        (["hints", "--set", "colour=red"], "--set: colour: not one of"),
        (["magic"], "'magic' is not one of no_gate_vs_gate"),
        (["sizing", "--set", "profile=demo"], "--set: profile: sizing has no knobs"),
        (["early_warning", "--set", "streams=1"], "--set: streams: only profile can be set"),
        (["early_warning", "--set", "profile=magic"], "--set: profile: 'magic' is not one of"),
    ],
)
def test_a_knob_that_is_wrong_is_a_plain_error(
    capsys: pytest.CaptureFixture[str], arguments: list[str], wrong: str
) -> None:
    assert carry_out(["run", *arguments]) == 2
    assert wrong in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["burst", "--service", "soon"], "--service: 'soon' is not a duration"),
        (["burst", "--users", "0"], "--users: must be"),
        (["replay", "/nowhere.csv"], "/nowhere.csv"),
    ],
)
def test_a_wrong_option_of_a_demonstration_is_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], wrong: str
) -> None:
    assert carry_out(["demo", *arguments]) == 2
    assert wrong in capsys.readouterr().err

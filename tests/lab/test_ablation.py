"""Runs with and without a refinement are paired, and the page says what changed."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from lab.ablation import Change, Row, change, paired_changes, played
from lab.experiments.promises import Case, is_absent
from lab.interpreted import is_compiled, run_interpreted
from lab.refinements import REFINEMENTS
from lab.suites import SUITES
from lab.table import page, shown

_ROOT = Path(__file__).resolve().parents[2]


def test_a_change_is_the_mean_of_differences_with_its_standard_error_and_shares_are_points() -> None:
    points, seconds = change([0.01, 0.03], "goodput"), change([1.0, 3.0], "delay_s")

    assert (points.mean, points.error) == pytest.approx((2.0, 1.0))
    assert (seconds.mean, seconds.error) == pytest.approx((2.0, 1.0))
    assert change([0.5], "kept") == Change(50.0, 0.0)


def test_what_only_some_cases_show_is_paired_among_those() -> None:
    pairs = [({"goodput": 0.5}, {"goodput": 0.6}), ({"lead_s": 3.0}, {"lead_s": 1.0})]

    changes = paired_changes(pairs)

    assert changes["goodput"].mean == pytest.approx(-10.0)
    assert changes["lead_s"].mean == pytest.approx(2.0)


def test_what_only_one_of_a_pair_shows_is_no_change() -> None:
    pairs = [
        ({"goodput": 0.5, "kept": 1.0}, {"goodput": 0.5}),
        ({"goodput": 0.5}, {"goodput": 0.5, "kept": 1.0}),
    ]

    assert list(paired_changes(pairs)) == ["goodput"]


def test_runs_in_which_no_client_returns_say_nothing_of_hints() -> None:
    """They counted as runs in which every hint was broken."""
    shown_kept = [each["kept"] for each in played(None, "overload", 1302) if "kept" in each]

    assert shown_kept == [1.0]


def test_the_same_seed_shows_the_same_and_a_switched_off_refinement_another() -> None:
    if is_compiled():
        pytest.skip("switches do not reach a compiled core; the lab runs a copy then")
    number = next(at for at, each in enumerate(REFINEMENTS) if each.name == "reading: goes on")

    usual = played(None, "storm", 201)

    assert played(None, "storm", 201) == usual
    assert played(number, "storm", 201) != usual
    assert played(None, "storm", 201) == usual


def test_the_page_has_a_line_for_every_row_with_plain_rule_size_and_figures() -> None:
    refinement = REFINEMENTS[0]
    lines, constants = refinement.size()
    row = Row(refinement.name, "hints", {"goodput": Change(-1.25, 0.5), "idle": Change(0.0, 0.0)})

    text = page([row], 201)

    start = f"| {refinement.name} | {refinement.plain} | {lines} | {constants} | hints |"
    assert f"{start} -1.25 ± 0.50 |  | 0 |  |  |" in text
    assert "seeds 201 to 203" in text


def test_no_change_is_nothing_and_no_figure_is_empty() -> None:
    assert shown(None) == ""
    assert shown(Change(0.0, 0.0)) == "0"
    assert shown(Change(0.0, 0.2)) == "+0.00 ± 0.20"


def test_the_command_refuses_to_write_a_part_of_the_page_and_a_suite_that_does_not_exist() -> None:
    for arguments, words in (
        (["--only", "hints", "--write"], "the page needs all suites"),
        (["--only", "no such suite"], "invalid choice: 'no such suite'"),
    ):
        command = [sys.executable, "-m", "lab", "ablate", *arguments]
        ended = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
        assert ended.returncode == 2
        assert words in ended.stderr


def test_over_a_copy_of_the_sources_the_command_runs_as_well() -> None:
    assert run_interpreted(["ablate", "--help"]) == 0
    assert run_interpreted(["ablate", "--only", "no such suite"]) == 2


@pytest.mark.parametrize("name", list(SUITES["absent tenants"].cases))
def test_in_every_case_of_absent_tenants_half_of_them_stay_away(name: str) -> None:
    run = SUITES["absent tenants"].cases[name]
    assert isinstance(run, partial)
    case = run.args[0]
    assert isinstance(case, Case)
    assert sum(is_absent(case, 0, f"tenant-{tenant}") for tenant in range(case.tenants)) == case.tenants / 2

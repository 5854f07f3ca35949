"""Seeds become means with intervals, and every experiment runs and answers its question."""

from dataclasses import replace

import pytest
from lab.experiments.catalogue import EXPERIMENTS, run_arm
from lab.experiments.scenario import Scenario, play

from millgate.sim.experiments.contract import Arm, answer, estimate


def test_an_interval_is_students_for_few_seeds() -> None:
    result = estimate([1.0, 2.0, 3.0, 4.0, 5.0])

    assert result.mean == 3.0
    assert (result.low, result.high) == pytest.approx((3.0 - 1.963, 3.0 + 1.963), abs=0.01)
    assert estimate([2.0]).low == 2.0
    assert estimate([1.0, 2.0, 30.0]).median == 2.0


def test_places_gather_all_seeds_of_an_arm() -> None:
    experiment = EXPERIMENTS["sizing"]
    runs = [(Arm("one", 1.0), [(1.0, {"waits": value, "erlang_c": 0.5})]) for value in (0.2, 0.4)]
    result = answer(experiment, runs)

    assert len(result.places) == 1
    assert result.places[0].metrics["waits"].mean == pytest.approx(0.3)
    assert result.facts["largest_gap_to_erlang_c"] == pytest.approx(0.2)


def test_every_experiment_has_at_least_five_seeds_and_series_to_compare() -> None:
    for experiment in EXPERIMENTS.values():
        assert experiment.seeds >= 5
        assert len({arm.series for arm in experiment.arms}) >= 2


@pytest.mark.parametrize("name", ["sizing", "heavy_tail", "hint_quality"])
def test_an_arm_shows_the_metric_of_its_experiment(name: str) -> None:
    measured = run_arm(name, 0, 1)

    assert all(EXPERIMENTS[name].metric in metrics for _, metrics in measured)


def test_under_overload_the_gate_keeps_the_goodput_that_no_gate_loses() -> None:
    scenario = replace(Scenario(), until_s=50.0).at_load(3.0)
    shares = {
        policy: play(replace(scenario, policy=policy), 1).goodput_share for policy in ("no gate", "gate")
    }

    assert shares["gate"] > 0.8
    assert shares["no gate"] < 0.2


def test_all_policies_meet_the_same_arrivals() -> None:
    scenario = replace(Scenario(), until_s=40.0).at_load(0.5)
    asked = {play(replace(scenario, policy=policy), 1).summary.requests for policy in ("no gate", "gate")}

    assert len(asked) == 1

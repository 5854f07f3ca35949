"""Load climbs through capacity before the real governor, or stays where it is."""

from lab.bounds.detection import Climb
from lab.experiments.catalogue import run_arm
from lab.experiments.ramps import climb, earliest, stay, swing

from lab.experiments import ramps
from millgate.core.snapshot import AlarmSignal
from millgate.sim.experiments.contract import answer


def test_a_ramp_is_called_about_when_it_passes_capacity_and_well_before_the_first_miss() -> None:
    seen = climb(30.0, 5)

    assert abs(seen["delay_s"]) < 5.0
    assert seen["lead_s"] > 10.0
    assert seen["false_alarms_per_h"] == 0.0


def test_beside_the_delay_stands_that_of_the_best_detector_on_the_same_arrivals() -> None:
    seen = climb(10.0, 3, profile="demo")

    assert seen["best_delay_s"] % 0.25 == (-10.0 * (1.0 - 0.65) / (1.3 - 0.65)) % 0.25
    assert -2.0 < seen["best_delay_s"] < 12.0


CALM = {"false_alarms_per_h": 0.0, **{f"{signal}_false_alarms_per_h": 0.0 for signal in AlarmSignal}}


def by_signal(first_s: float) -> dict[str, float]:
    return {f"{signal}_delay_s": first_s + later for later, signal in enumerate(AlarmSignal)}


def test_an_answer_names_the_medians_of_delay_bound_and_lead() -> None:
    arm = ramps.EARLY_WARNING.arms[0]
    runs = [
        (arm, [(60.0, {"delay_s": x, "best_delay_s": x - 1.0, "lead_s": 2.0 * x, **by_signal(x), **CALM})])
        for x in (1.0, 2.0, 9.0)
    ]

    assert answer(ramps.EARLY_WARNING, runs).facts == {
        "1 engines, ramp of 60 s: median delay, seconds": 2.0,
        "1 engines, ramp of 60 s: median best possible delay, seconds": 1.0,
        "1 engines, ramp of 60 s: median lead, seconds": 4.0,
        "1 engines, ramp of 60 s: median delay of `load`, seconds": 2.0,
        "1 engines, ramp of 60 s: median delay of `acceleration`, seconds": 3.0,
        "1 engines, ramp of 60 s: median delay of `backlog`, seconds": 4.0,
        "false alarms an hour": 0.0,
        "of them `load`": 0.0,
        "of them `acceleration`": 0.0,
        "of them `backlog`": 0.0,
    }


def test_the_bound_alone_is_later_for_a_smaller_system_and_sooner_for_a_lower_calm() -> None:
    small, low, large = (
        earliest(Climb(calm, 1.4, 10.0, capacity_per_s), 1)["best_delay_s"]
        for calm, capacity_per_s in ((0.6, 4.0), (0.5, 4.0), (0.6, 23.0))
    )

    assert small > low > large
    assert 4.0 < small < 6.0
    assert 0.3 < large < 1.3


def test_each_arm_of_the_bound_is_a_ramp_from_a_calm_at_a_capacity() -> None:
    arm = ramps.EARLIEST_WARNING.arms[0]

    assert (arm.series, arm.x) == ("10 s from 0.5", 4.0)
    assert run_arm("earliest_warning", 0, 1) == [(4.0, earliest(Climb(0.5, 1.35, 10.0, 4.0), 1))]


def test_an_engine_of_another_profile_is_another_run() -> None:
    arm = len(ramps.EARLY_WARNING.arms) // 2 - 1

    assert run_arm("early_warning", arm, 1, {"profile": "demo"}) == [(10.0, climb(10.0, 1, profile="demo"))]


def test_load_that_stays_is_called_nothing_even_in_bursts() -> None:
    assert stay(0.7, 2.0, 1, hours=0.05)["false_alarms_per_h"] == 0.0


def test_a_load_that_swings_as_days_do_is_called_nothing() -> None:
    assert swing(0.7, 1, hours=0.05)["acceleration_false_alarms_per_h"] == 0.0


def test_both_questions_are_asked_of_every_load() -> None:
    assert {arm.x for arm in ramps.EARLY_WARNING.arms} == {10.0, 30.0, 60.0}
    assert {(arm.series, arm.x) for arm in ramps.FALSE_ALARMS.arms} == {
        (series, load) for series in ("one by one", "in bursts", "swinging") for load in (0.5, 0.7, 0.8, 0.9)
    }

"""Load climbs through capacity before the real governor, or stays where it is."""

from headgate.sim.experiments import ramps
from headgate.sim.experiments.ramps import climb, stay


def test_a_ramp_is_called_about_when_it_passes_capacity_and_well_before_the_first_miss() -> None:
    seen = climb(30.0, 5)

    assert abs(seen["delay_s"]) < 5.0
    assert seen["lead_s"] > 10.0
    assert seen["false_alarms_per_h"] == 0.0


def test_load_that_stays_is_called_nothing_even_in_bursts() -> None:
    assert stay(0.7, 2.0, 1, hours=0.05)["false_alarms_per_h"] == 0.0


def test_both_questions_are_asked_of_every_load() -> None:
    assert {arm.x for arm in ramps.EARLY_WARNING.arms} == {10.0, 30.0, 60.0}
    assert {(arm.series, arm.x) for arm in ramps.FALSE_ALARMS.arms} == {
        (series, load) for series in ("one by one", "in bursts") for load in (0.5, 0.7, 0.8, 0.9)
    }

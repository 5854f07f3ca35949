"""Load climbs through capacity before the real governor: the alarm comes before anybody is late."""

from headgate.sim.experiments.ramps import climb


def test_a_ramp_is_called_about_when_it_passes_capacity_and_well_before_the_first_miss() -> None:
    seen = climb(30.0, 1)

    assert abs(seen["delay_s"]) < 5.0
    assert seen["lead_s"] > 10.0
    assert seen["false_alarms_per_h"] == 0.0

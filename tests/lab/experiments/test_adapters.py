"""Adapters in the simulator: a gate that is told of them keeps each where it is loaded."""

from dataclasses import replace

import pytest
from lab.experiments.adapters import AdapterScene, adapters, play

SHORT = AdapterScene(engines=4, rate_per_s=12.0, until_s=60.0)


@pytest.mark.parametrize("skew", [1.0, 2.0])
def test_requests_are_in_time_where_the_gate_knows_what_is_loaded(skew: float) -> None:
    scene = replace(SHORT, skew=skew)
    blind, told = [play(scene, 8, 1, told=told)["good_share"] for told in (False, True)]

    assert told > 0.97
    assert told > blind + 0.1


def test_a_knob_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="engine: not one of engines, profile"):
        adapters({"engine": "2"})


def test_more_adapters_than_slots_take_turns_and_more_are_good_than_with_as_many_as_there_are_slots() -> None:
    slots, count = SHORT.engines * SHORT.slots, 12
    told = play(SHORT, count, 1, told=True)["good_share"]

    assert told > slots / count

"""Giant prompts beside people: the next waits where people were turned away for one, and goes where none is."""

from dataclasses import replace

import pytest
from lab.experiments.giants import GiantScene, giant_prompts, play

SHORT = GiantScene(warm_up_s=60.0, until_s=600.0, giants_per_minute=3.0)


def test_people_wait_behind_giants_where_no_gate_spaces_them() -> None:
    ungated, gated, spaced = [
        play(replace(SHORT, policy=policy, tpot_slo_s=tpot_slo_s), 1)
        for policy, tpot_slo_s in (("no gate", 0.0), ("gate", 0.0), ("gate", 0.2))
    ]
    assert ungated["people_good_share"] < 0.2
    assert gated["people_good_share"] > 0.85
    assert spaced["people_good_share"] > 0.9
    assert min(gated["giants_per_minute"], spaced["giants_per_minute"]) > 0.0


def test_four_engines_read_giants_for_which_no_person_is_turned_away() -> None:
    found = [
        play(replace(SHORT, engines=4, giants_per_minute=0.6, tpot_slo_s=tpot_slo_s), 1)
        for tpot_slo_s in (0.0, 0.2)
    ]
    assert all(each["people_good_share"] > 0.97 for each in found)
    assert all(each["giants_per_minute"] > 0.3 for each in found)


def test_one_lane_refuses_giants_for_people() -> None:
    found = play(replace(SHORT, lanes=1), 1)

    assert found["people_good_share"] > 0.95
    assert found["giants_per_minute"] < 1.0


@pytest.mark.parametrize(
    ("knob", "complaint"),
    [
        ({"giants": "2"}, "giants: not one of profile"),
        ({"people_per_s": "0"}, "people_per_s: must be above 0"),
        ({"giant_tokens": "1000000"}, "giant_tokens: must be at most"),
        ({"until_s": "100"}, "until_s: must be above warm_up_s"),
    ],
)
def test_a_knob_that_makes_no_sense_is_named(knob: dict[str, str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        giant_prompts(knob)

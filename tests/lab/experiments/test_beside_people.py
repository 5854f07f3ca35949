"""Agents beside people: in a lane of their own agents finish what they have begun, and people still come first."""

from dataclasses import replace

import pytest
from lab.experiments.beside_people import SharedScene, agents_beside_people, play

SHORT = SharedScene(warm_up_s=120.0, until_s=420.0)


def test_agents_in_the_lane_of_people_give_up_what_they_finish_in_their_own() -> None:
    together, apart = [
        play(replace(SHORT, lanes=lanes, people_per_s=4.0), 1) for lanes in ("one lane", "default lanes")
    ]

    assert together["given_up_per_minute"] > 1.0
    assert apart["given_up_per_minute"] == 0.0
    assert apart["turns_per_minute"] > 2 * together["turns_per_minute"]
    assert apart["people_good_share"] > 0.5


def test_people_who_fit_beside_agents_are_served_in_time() -> None:
    found = play(replace(SHORT, people_per_s=0.5), 1)

    assert found["people_good_share"] == 1.0
    assert found["turns_per_minute"] > 1.0


def test_a_knob_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="people: not one of profile"):
        agents_beside_people({"people": "2"})

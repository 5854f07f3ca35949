"""Cold prompts among agents: the scene counts turns that go on apart from what no engine holds."""

from dataclasses import replace

import pytest
from lab.experiments.cold_prompts import ColdScene, cold_prompts, play

SHORT = ColdScene(engines=2, warm_up_s=60.0, until_s=240.0)


def test_without_cold_prompts_none_is_counted_and_warm_turns_are_soon() -> None:
    found = play(replace(SHORT, cold_per_minute=0.0), 1)

    assert found["cold_per_minute"] == 0.0
    assert found["warm_per_minute"] > 1.0
    assert 0.0 < found["warm_ttft_mean_s"] <= 10.0


def test_without_a_gate_warm_turns_stand_behind_cold_prompts() -> None:
    without, beside = [play(replace(SHORT, policy="no gate", cold_per_minute=x), 1) for x in (0.0, 4.0)]

    assert beside["cold_per_minute"] > 1.0
    assert beside["warm_ttft_mean_s"] > without["warm_ttft_mean_s"]


def test_a_knob_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="engine: not one of engines, profile"):
        cold_prompts({"engine": "2"})

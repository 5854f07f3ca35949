"""A gate without settings makes of an engine nearly what the best cap makes, whatever batch it runs."""

import pytest
from lab.experiments.found_cap import play

_BAR = 0.9


@pytest.mark.parametrize("gauges", [True, False], ids=["gauges", "silent"])
@pytest.mark.parametrize("batch", [16, 200])
def test_no_setting_is_needed_for_nine_tenths_of_the_best_fixed_cap(batch: int, gauges: bool) -> None:
    best = max(play(batch, 11, cap=cap)["good"] for cap in (batch, round(1.25 * batch)))

    assert play(batch, 11, gauges=gauges)["good"] >= _BAR * best


def test_the_limit_follows_the_engines_own_queue() -> None:
    small, large = play(16, 12), play(200, 12)

    assert small["limit"] < 64 < large["limit"]
    assert small["ttft_mean_s"] < 0.75 * play(16, 12, cap=210)["ttft_mean_s"]

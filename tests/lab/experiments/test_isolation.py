"""A lane under its share does not see that another floods."""

from lab.experiments.isolation import isolation


def test_a_lane_under_its_share_misses_nothing_while_another_floods() -> None:
    seen = isolation(16, 5.0, 1)

    assert seen["asked"] > 100
    assert seen["misses"] <= 0.005
    assert seen["ttft_p99_s"] < 1.0

"""Named quantiles: what is named is what ends just below the SLO."""

import pytest
from lab.experiments.named_quantiles import NAMED_QUANTILES, SHARES

from millgate.sim.experiments.contract import Arm, answer

SEED = 1


def test_the_quantile_that_is_named_ends_just_below_the_slo_and_a_higher_one_costs_streams() -> None:
    profile = "llama3-8b_h100_tp1"
    results = [NAMED_QUANTILES.run(Arm(profile, share), SEED) for share in SHARES]
    metrics = [measured for [(_, measured)] in results]

    assert [each["named_share"] for each in metrics] == [pytest.approx(0.97, abs=0.05)] * len(SHARES)
    assert all(each["tokens_share"] > 0.93 for each in metrics)
    streams = [each["feasible_streams"] for each in metrics]
    assert streams == sorted(streams, reverse=True)
    assert streams[0] > 1.5 * streams[-1]
    assert metrics[0]["p99_share"] > 1.2
    assert metrics[-1]["p50_share"] < 0.75


def test_facts_are_the_ends_of_each_quantile_over_the_profiles() -> None:
    told = answer(
        NAMED_QUANTILES,
        [
            (Arm("demo", 0.99), [(0.99, {"named_share": 0.9})]),
            (Arm("other", 0.99), [(0.99, {"named_share": 1.1})]),
        ],
    )

    assert told.facts == {"p99: most of the SLO": 1.1, "p99: least of the SLO": 0.9}

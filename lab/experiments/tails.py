"""heavy_tail: what clipping the longest 1 % of answers buys."""

from dataclasses import replace

import numpy as np

from lab.experiments.scenario import Scenario, play
from lab.laws import clipped
from millgate.core.settings import LaneSettings
from millgate.sim.clients.crowd import Manners
from millgate.sim.clients.retry_behaviour import Sdk
from millgate.sim.experiments.contract import Arm, Experiment, Measured
from millgate.sim.laws import lognormal
from millgate.sim.traces.synthetic import LENGTHS, Lengths

_LOADS = (0.5, 0.7, 0.9, 1.1, 1.5)
# Squared variation 8.49 is a lognormal with sigma 1.5.
_ANSWERS = lognormal(250.0, 8.49)
_P99 = float(np.quantile(_ANSWERS.sample(np.random.default_rng(0), 200_000), 0.99))
_WHOLE = Lengths(LENGTHS["azure_conversation"].prompt, _ANSWERS)
_CLIPPED = Lengths(_WHOLE.prompt, clipped(_ANSWERS, _P99))
_SERIES = {"whole": _WHOLE, "longest 1 % clipped": _CLIPPED}
_SCENARIO = Scenario(
    lane=LaneSettings("interactive", ttft_slo_s=2.0, deadline_s=2.0),
    lengths=_WHOLE,
    max_inflight=32,
    manners=Manners(retry_behaviour=Sdk()),
    until_s=200.0,
)


def _run(arm: Arm, seed: int) -> Measured:
    assert arm.x is not None
    # The same arrivals for both: the load is a share of what the fleet can do with whole answers.
    scenario = _SCENARIO.at_load(arm.x)
    share = scenario.capacity_per_s / replace(scenario, lengths=_SERIES[arm.series]).capacity_per_s
    played = play(replace(scenario, lengths=_SERIES[arm.series]).at_load(arm.x * share), seed)
    summary = played.summary
    return [
        (
            arm.x,
            {
                "good": summary.good_share,
                "ttft_p99_s": summary.ttft_s.p99,
                "total_p99_s": summary.total_s.p99,
                "goodput_per_s": summary.goodput_per_s,
            },
        )
    ]


HEAVY_TAIL = Experiment(
    name="heavy_tail",
    question="What does clipping the longest 1 % of answers buy?",
    arms=tuple(Arm(series, load) for series in _SERIES for load in _LOADS),
    run=_run,
    metric="good",
    x_label="offered load, times capacity with whole answers",
    y_label="good answers, share of requests",
)

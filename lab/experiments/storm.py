"""retry_storm: a spike of 30 seconds. Does goodput return when the spike is over?

The fleet serves more than 1,000 requests a second. Its engines generate to the end for clients that have left, as
many stacks do because something on the way does not pass hang-ups on. Users give up after five seconds and their
SDKs try twice more. Bronson et al. (Metastable failures in distributed systems, HotOS 2021) call it metastable
when the overload outlives its trigger.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from lab.changing_rates import step
from lab.experiments.scenario import Scenario, play
from millgate.core.settings import LaneSettings
from millgate.sim.clients.crowd import Manners
from millgate.sim.clients.retry_behaviour import Sdk
from millgate.sim.experiments.contract import Arm, Experiment, Measured, SeriesPoint
from millgate.sim.fleet import EngineManners
from millgate.sim.laws import constant
from millgate.sim.traces.synthetic import LENGTHS

SPIKE_AT_S, SPIKE_FOR_S, BIN_S, UNTIL_S = 10.0, 30.0, 2.0, 60.0
_BASE_LOAD, _SPIKE_LOAD = 0.7, 2.0
_SCENARIO = Scenario(
    engines=14,
    max_inflight=64,
    lane=LaneSettings("interactive", ttft_slo_s=2.0, deadline_s=2.0, order="short_first", fair=True),
    lengths=LENGTHS["short"],
    load=step(_BASE_LOAD, _SPIKE_LOAD, SPIKE_AT_S, SPIKE_FOR_S),
    highest_load=_SPIKE_LOAD,
    manners=Manners(constant(5.0), Sdk()),
    engine_manners=EngineManners(ignores_hangups=True),
    warm_up_s=0.0,
    until_s=UNTIL_S,
    bin_s=BIN_S,
    aftermath_s=0.0,
)
_CAPACITY_PER_S = _SCENARIO.capacity_per_s


def _run(arm: Arm, seed: int) -> Measured:
    played = play(replace(_SCENARIO, policy=arm.series), seed)
    per_bin = _CAPACITY_PER_S * BIN_S
    return [
        (
            index * BIN_S,
            {
                "goodput": stretch.good / per_bin,
                "offered": stretch.attempts / per_bin,
                "possible": min(1.0, stretch.attempts / per_bin),
            },
        )
        for index, stretch in enumerate(played.stretches)
    ]


def _facts(places: Sequence[SeriesPoint]) -> Mapping[str, float]:
    """Say what goodput is from two bins after the spike on, in shares of capacity and of what was possible."""
    facts = {"capacity_per_s": _CAPACITY_PER_S}
    settled = SPIKE_AT_S + SPIKE_FOR_S + 2 * BIN_S
    for series in dict.fromkeys(place.series for place in places):
        after = [place.metrics for place in places if place.series == series and place.x >= settled - BIN_S]
        key = series.replace(" ", "_")
        facts[f"{key}_goodput_after"] = fmean(metrics["goodput"].mean for metrics in after)
        facts[f"{key}_share_of_possible_after"] = fmean(
            metrics["goodput"].mean / metrics["possible"].mean for metrics in after
        )
        facts[f"{key}_lowest_share_of_possible_after"] = min(
            metrics["goodput"].mean / metrics["possible"].mean for metrics in after
        )
    return facts


RETRY_STORM = Experiment(
    name="retry_storm",
    question="After a spike of 30 seconds at twice the capacity: does goodput return?",
    arms=(Arm("no gate"), Arm("gate")),
    run=_run,
    metric="goodput",
    x_label="seconds; the spike lasts from 10 to 40",
    y_label="good answers, share of capacity",
    seeds=20,
    facts=_facts,
)

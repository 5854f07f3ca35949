"""sizing: how many streams does a load need? Rules of thumb against Erlang C, through the gate."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, sqrt

from lab.truths.queue import TruthQueue, observe
from millgate.sim.calculator import erlang_c
from millgate.sim.experiments.contract import Arm, Experiment, Measured, SeriesPoint

_LOADS = (5.0, 10.0, 20.0, 50.0, 100.0)
_ARRIVALS = 20_000
_RULES: Mapping[str, Callable[[float], int]] = {
    "twice the load": lambda load: ceil(2.0 * load),
    "load + 2 roots": lambda load: ceil(load + 2.0 * sqrt(load)),
    "load + 1 root": lambda load: ceil(load + sqrt(load)),
    "a quarter more": lambda load: ceil(1.25 * load),
}


def _run(arm: Arm, seed: int) -> Measured:
    load = arm.x
    assert load is not None
    streams = _RULES[arm.series](load)
    tally = observe(TruthQueue(load, servers=streams), seed, _ARRIVALS)
    waits = float(tally.column("waited").sum() / tally.column("arrivals").sum())
    return [(load, {"waits": waits, "erlang_c": erlang_c(streams, load), "streams": float(streams)})]


def _facts(places: Sequence[SeriesPoint]) -> Mapping[str, float]:
    """Return the largest distance between gate and formula."""
    return {
        "largest_gap_to_erlang_c": max(
            abs(place.metrics["waits"].mean - place.metrics["erlang_c"].mean) for place in places
        )
    }


SIZING = Experiment(
    name="sizing",
    question="How many streams does a load need so that hardly any request waits?",
    arms=tuple(Arm(rule, load) for rule in _RULES for load in _LOADS),
    run=_run,
    metric="waits",
    x_label="load in streams (rate x service time)",
    y_label="share that waits",
    logarithmic_x=True,
    facts=_facts,
)

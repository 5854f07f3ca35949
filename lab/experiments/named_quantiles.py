"""named_quantiles: does the limit keep a TPOT at the quantile that is named, from half of the answers to 99 in 100?

As `limiter_shootout`, but the same SLO is promised to one share of the answers after another, and each run lasts ten minutes, for
a p99 is that of few answers. *Feasible* is the largest fixed limit that keeps the SLO at that quantile.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from lab.experiments.limiter_shootout import FROM_S, SLO_RATIO, feasible, pinned, run_limit, slo_s
from millgate.sim.experiments.contract import Arm, Experiment, Measured, SeriesPoint

SHARES: Final = (0.5, 0.9, 0.95, 0.99)
"""The quantiles that are named."""
_PROFILES: Final = ("llama3-8b_h100_tp1", "llama3-70b_h100_tp4", "llama3-70b_a100_tp8")
_UNTIL_S: Final = 600.0


def _run(arm: Arm, seed: int) -> Measured:
    assert arm.x is not None
    profile, share = arm.series, arm.x
    streams, tokens_per_s = feasible(profile, seed, SLO_RATIO, share, _UNTIL_S)
    trace = run_limit(profile, pinned(profile, streams, 0.5), seed, _UNTIL_S, share)
    told = {f"p{100.0 * each:g}_share": trace.tpot_s(FROM_S, each) / slo_s(profile) for each in SHARES}
    measured = {
        "named_share": trace.tpot_s(FROM_S, share) / slo_s(profile),
        "tokens_share": trace.tokens_per_s(FROM_S, _UNTIL_S) / tokens_per_s,
        "feasible_streams": float(streams),
    }
    return [(share, measured | told)]


def _facts(places: Sequence[SeriesPoint]) -> Mapping[str, float]:
    """Return, of each quantile, its highest and lowest over the profiles, as shares of the SLO."""
    facts: dict[str, float] = {}
    for share in SHARES:
        named = [place.metrics["named_share"].mean for place in places if place.x == share]
        if named:
            facts[f"p{100.0 * share:g}: most of the SLO"] = max(named)
            facts[f"p{100.0 * share:g}: least of the SLO"] = min(named)
    return facts


NAMED_QUANTILES = Experiment(
    name="named_quantiles",
    question="Does the limit keep a TPOT at the quantile that is named?",
    arms=tuple(Arm(profile, share) for share in SHARES for profile in _PROFILES),
    run=_run,
    metric="named_share",
    x_label="share of answers that is promised the SLO",
    y_label="TPOT at the named quantile over the SLO",
    facts=_facts,
)

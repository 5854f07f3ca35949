"""tight_slos: what the SLO-pinned limit makes of an SLO that leaves room for hundreds of streams, or for two.

As `limiter_shootout`, but the SLO moves from four times the TPOT of a lone stream down to 1.2 times. The fewer streams
it allows, the more tokens hang on each.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from lab.experiments.limiter_shootout import PROFILES, feasible, judged, pinned
from millgate.sim.experiments.contract import Arm, Experiment, Measured, SeriesPoint

RATIOS = (1.2, 1.35, 1.5, 2.0, 3.0, 4.0)
"""SLOs, as multiples of the TPOT of a lone stream."""
_STARTS = {"from half": 0.5, "from ten times": 10.0}
# The aim: nearly all tokens of the best fixed limit, and the SLO kept.
_LEAST_TOKENS, _MOST_TPOT = 0.95, 1.0


def _run(arm: Arm, seed: int) -> Measured:
    assert arm.x is not None
    try:
        streams, _ = feasible(arm.series, seed, arm.x)
    except ValueError:
        return []  # the luck of this seed leaves nothing to compare with
    both = {
        start: judged(arm.series, pinned(arm.series, streams, share, arm.x), seed, arm.x)
        for start, share in _STARTS.items()
    }
    own = {f"{name} {start}": value for start, metrics in both.items() for name, value in metrics.items()}
    tokens_share = fmean(metrics["tokens_share"] for metrics in both.values())
    return [(arm.x, {"tokens_share": tokens_share, "feasible_streams": float(streams)} | own)]


def _facts(places: Sequence[SeriesPoint]) -> Mapping[str, float]:
    """Return, of each SLO, how many profiles and starts are outside the aim in mean, and the range of both sides."""
    return {name: value for ratio in RATIOS for name, value in _facts_of(places, ratio)}


def _facts_of(places: Sequence[SeriesPoint], ratio: float) -> Iterator[tuple[str, float]]:
    own = [place.metrics for place in places if place.x == ratio]
    cells = [
        (metrics[f"tokens_share {start}"].mean, metrics[f"tpot_p90_share {start}"].mean)
        for metrics in own
        for start in _STARTS
    ]
    if not cells:
        return
    tokens, tpots = [share for share, _ in cells], [share for _, share in cells]
    outside = [share < _LEAST_TOKENS or tpot > _MOST_TPOT for share, tpot in cells]
    yield f"{ratio:g}x: outside the aim, of {len(cells)}", float(sum(outside))
    yield f"{ratio:g}x: least tokens_share", min(tokens)
    yield f"{ratio:g}x: mean tokens_share", fmean(tokens)
    yield f"{ratio:g}x: most tokens_share", max(tokens)
    yield f"{ratio:g}x: least tpot_p90_share", min(tpots)
    yield f"{ratio:g}x: most tpot_p90_share", max(tpots)


TIGHT_SLOS = Experiment(
    name="tight_slos",
    question="What does the SLO-pinned limit find as the SLO tightens?",
    arms=tuple(Arm(profile, ratio) for ratio in RATIOS for profile in PROFILES),
    run=_run,
    metric="tokens_share",
    x_label="SLO over the TPOT of a lone stream",
    y_label="tokens a second, share of the best fixed limit's",
    facts=_facts,
)

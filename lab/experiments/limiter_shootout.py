"""limiter_shootout: which limiter finds the most that an engine can run within its TPOT SLO, and how fast?

Every shipped profile, asked for twice its capacity, under an SLO of three times the TPOT of a lone stream. What
is *feasible* is found by search: the largest fixed limit whose TPOT keeps the SLO at the quantile in question, p90 here, on the
same arrivals and lengths. Limiters begin at half of it or at ten times it, and are judged from the 60th second on.

They run in a closed loop of gate, signal, limit and one engine (`lab/limiters/closed_loop`), without lanes,
quotas and hints, so that nothing but the limiter differs.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from statistics import fmean, pstdev

from lab.limiters.closed_loop import COMPARED_SHARE, LimiterLoop, Trace
from lab.limiters.envoy import EnvoyLimit
from lab.limiters.gradient2 import Gradient2Limit
from lab.limiters.vegas import VegasLimit
from millgate.core.limits.aimd import AimdLimit
from millgate.core.limits.gate import FixedLimit, Limit
from millgate.core.limits.slo_gradient import SloGradientLimit
from millgate.engine.profile import load_profiles
from millgate.sim.bounds.work import capacity_per_s
from millgate.sim.experiments.contract import Arm, Experiment, Measured, SeriesPoint
from millgate.sim.randomness import Streams
from millgate.sim.traces.synthetic import LENGTHS, jobs, steady

PROFILES = tuple(sorted(load_profiles()))
SLO_RATIO = 3.0
# Context of the lone stream whose TPOT the SLO is a multiple of.
_CONTEXT_TOKENS = 1000
_LOAD = 2.0
FROM_S, UNTIL_S = 60.0, 240.0
# No shipped engine runs more; a limit beyond this only fills the engine's own queue.
_MOST = 320


def slo_s(profile: str, ratio: float = SLO_RATIO) -> float:
    """Return this multiple of the time per token of a lone stream."""
    return ratio * load_profiles()[profile].step_model().decode_steps_s(1, _CONTEXT_TOKENS, 1)


def run_limit(
    profile: str, limit: Limit, seed: int, until_s: float = UNTIL_S, share: float = COMPARED_SHARE
) -> Trace:
    """Let one limiter meet the arrivals and lengths of this seed at twice what the engine can serve; `share` is steered."""
    streams, lengths, engine = Streams(seed), LENGTHS["azure_conversation"], load_profiles()[profile]
    rate = _LOAD * capacity_per_s(engine, lengths, engine.max_num_seqs)
    return LimiterLoop(engine, jobs(steady(rate, streams), lengths, streams), limit, share=share).run(until_s)


@cache
def feasible(
    profile: str, seed: int, ratio: float = SLO_RATIO, share: float = COMPARED_SHARE, until_s: float = UNTIL_S
) -> tuple[int, float]:
    """Return the largest fixed limit that keeps the SLO, found by halving, and its tokens a second.

    ValueError when not even one stream does.
    """
    low, high = 0, _MOST
    tokens_per_s = 0.0
    while low < high:
        middle = (low + high + 1) // 2
        trace = run_limit(profile, FixedLimit(middle), seed, until_s)
        if trace.tpot_s(FROM_S, share) <= slo_s(profile, ratio):
            low, tokens_per_s = middle, trace.tokens_per_s(FROM_S, until_s)
        else:
            high = middle - 1
    if low == 0:
        raise ValueError(f"profile: {profile} keeps no TPOT of {ratio:g} times that of a lone stream")
    return low, tokens_per_s


def judged(profile: str, limit: Limit, seed: int, ratio: float = SLO_RATIO) -> Mapping[str, float]:
    """Run one limiter and compare it with the feasible fixed limit."""
    trace = run_limit(profile, limit, seed)
    limits = trace.limits(FROM_S, UNTIL_S)
    return {
        "tokens_share": trace.tokens_per_s(FROM_S, UNTIL_S) / feasible(profile, seed, ratio)[1],
        "tpot_p90_share": trace.tpot_s(FROM_S) / slo_s(profile, ratio),
        "limit_share": fmean(limits) / feasible(profile, seed, ratio)[0],
        "limit_cv": pstdev(limits) / fmean(limits),
    }


def hard_cap(streams: int) -> int:
    """Return a hard cap that leaves ten times the feasible limit free, and never binds below the engine's own."""
    return max(10 * streams, _MOST)


def pinned(profile: str, streams: int, share: float, ratio: float = SLO_RATIO) -> SloGradientLimit:
    """Return the SLO-pinned limit, beginning at this share of the feasible streams."""
    return SloGradientLimit(slo_s(profile, ratio), hard_cap(streams), max(1, round(share * streams)))


def _starting(share: float) -> Callable[[str, int], Limit]:
    def build(profile: str, seed: int) -> Limit:
        return pinned(profile, feasible(profile, seed)[0], share)

    return build


def _aimd(profile: str, seed: int) -> Limit:
    streams = feasible(profile, seed)[0]
    return AimdLimit(hard_cap(streams), max(1, streams // 2), tpot_slo_s=slo_s(profile))


_FROM_HALF, _FROM_TEN = "slo_gradient from half", "slo_gradient from 10x"
_LIMITERS: Mapping[str, Callable[[str, int], Limit]] = {
    _FROM_HALF: _starting(0.5),
    _FROM_TEN: _starting(10.0),
    "aimd from half": _aimd,
    "vegas": lambda _profile, _seed: VegasLimit(),
    "gradient2": lambda _profile, _seed: Gradient2Limit(),
    "envoy gradient": lambda _profile, _seed: EnvoyLimit(),
}


def _run(arm: Arm, seed: int) -> Measured:
    assert arm.x is not None
    profile = PROFILES[int(arm.x) - 1]
    return [(arm.x, judged(profile, _LIMITERS[arm.series](profile, seed), seed))]


def _facts(places: Sequence[SeriesPoint]) -> Mapping[str, float]:
    """Return the worst of each start of slo_gradient over the profiles."""
    facts: dict[str, float] = {}
    for series in (_FROM_HALF, _FROM_TEN):
        own = [place.metrics for place in places if place.series == series]
        if own:
            facts[f"{series}: least tokens_share"] = min(each["tokens_share"].mean for each in own)
            facts[f"{series}: most tpot_p90_share"] = max(each["tpot_p90_share"].mean for each in own)
            facts[f"{series}: most limit_cv"] = max(each["limit_cv"].mean for each in own)
    return facts


LIMITER_SHOOTOUT = Experiment(
    name="limiter_shootout",
    question="Which limiter finds the most that an engine can run within its TPOT SLO?",
    arms=tuple(Arm(series, float(number)) for number in range(1, len(PROFILES) + 1) for series in _LIMITERS),
    run=_run,
    metric="tokens_share",
    x_label="profile: " + ", ".join(f"{number} {name}" for number, name in enumerate(PROFILES, 1)),
    y_label="tokens a second, share of the best fixed limit's",
    facts=_facts,
)

"""lane_isolation: one lane floods at ten times the capacity. What does a lane that stays under its share see of it?

Two lanes of equal share before one engine. The quiet one asks for a part of its share of the streams, its users take
the first refusal for the last. The users of the other leave after five seconds and their SDKs try twice more.
"""

from collections.abc import Mapping, Sequence

from lab.experiments.accounts import SimulatedAccount, let_come
from millgate.core.settings import LaneSettings
from millgate.core.words import Outcome
from millgate.engine.profile import find_profile
from millgate.sim.bounds.work import capacity_per_s
from millgate.sim.clients.crowd import Manners
from millgate.sim.clients.retry_behaviour import Sdk
from millgate.sim.experiments.contract import Arm, Experiment, Measured, SeriesPoint
from millgate.sim.fleet import uniform_fleet
from millgate.sim.laws import constant
from millgate.sim.randomness import Streams
from millgate.sim.traces.synthetic import LENGTHS, jobs, steady

_LIMITS = (16.0, 32.0, 64.0)
_DEADLINES_S = (5.0, 10.0)
_FLOOD = 10.0
# Half of a share of one half: its own peaks stay within the share, too.
_QUIET = 0.25
_FROM_S, _UNTIL_S = 30.0, 100.0
_LENGTHS = LENGTHS["azure_conversation"]
_PROFILE = find_profile("llama3-8b_h100_tp1")


def isolation(limit: int, deadline_s: float, seed: int, *, flood: float = _FLOOD) -> Mapping[str, float]:
    """Return the quiet lane's misses, as a share, and its times to first token; loads are shares of capacity."""
    capacity = capacity_per_s(_PROFILE, _LENGTHS, limit)
    lanes = [_lane(name, deadline_s) for name in ("quiet", "flood")]
    streams = Streams(seed)
    crowds = [
        (
            manners,
            jobs(
                steady(load * capacity, streams, number=number),
                _LENGTHS,
                streams,
                until_s=_UNTIL_S,
                lane=lanes[number].name,
                number=number,
            ),
        )
        for number, (load, manners) in enumerate(
            [(_QUIET, Manners()), (flood, Manners(constant(5.0), Sdk()))]
        )
    ]
    fleet = uniform_fleet(_PROFILE, 1, lanes, max_inflight=limit)
    return _judged(let_come(fleet, crowds, streams, _UNTIL_S + 2.0 * deadline_s + 30.0))


def _lane(name: str, deadline_s: float) -> LaneSettings:
    return LaneSettings(name, ttft_slo_s=deadline_s, deadline_s=deadline_s, order="short_first", fair=True)


def _judged(accounts: Sequence[SimulatedAccount]) -> Mapping[str, float]:
    quiet = [each for each in accounts if each.lane == "quiet" and each.arrived_at >= _FROM_S]
    ttfts = sorted(each.ttft_s for each in quiet if each.ttft_s is not None)
    return {
        "misses": sum(each.outcome is not Outcome.GOOD for each in quiet) / len(quiet),
        "ttft_p50_s": ttfts[len(ttfts) // 2],
        "ttft_p99_s": ttfts[int(0.99 * len(ttfts))],
        "asked": float(len(quiet)),
    }


def _run(arm: Arm, seed: int) -> Measured:
    assert arm.x is not None
    deadline_s = float(arm.series.removeprefix("deadline ").removesuffix(" s"))
    return [(arm.x, isolation(int(arm.x), deadline_s, seed))]


def _facts(places: Sequence[SeriesPoint]) -> Mapping[str, float]:
    return {"most misses": max(place.metrics["misses"].mean for place in places)}


LANE_ISOLATION = Experiment(
    name="lane_isolation",
    question="What does a lane under its share see of another that floods at ten times the capacity?",
    arms=tuple(Arm(f"deadline {deadline_s:g} s", limit) for deadline_s in _DEADLINES_S for limit in _LIMITS),
    run=_run,
    metric="misses",
    x_label="streams",
    y_label="share of the quiet lane's requests that are not good",
    facts=_facts,
)

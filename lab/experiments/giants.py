"""giant_prompts: people who chat, and prompts that take an engine longer to read than people wait; what becomes of each?

In one lane most giants are refused, as they cannot have their first token in its time. In the default lanes they are for `long_context`, and the
next waits where people were turned away for one. A `tpot_slo` of `interactive`, however long, spaces them before one engine in any case.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from lab.agents.session_users import agent_retries
from lab.default_gate import LANES, default_lanes, metered
from lab.heard import FirstTokens
from lab.knobs import ABOVE_0, PROFILE, Limits, at_least, check_fits, check_longer, with_knobs
from millgate.engine.profile import find_profile
from millgate.sim.clients.crowd import Crowd, Manners, OpenLoop
from millgate.sim.experiments.contract import Arm, Experiment, Measured, Metrics, SeriesPoint
from millgate.sim.fleet import uniform_fleet
from millgate.sim.jobs import Job
from millgate.sim.laws import constant, lognormal
from millgate.sim.loop import Loop
from millgate.sim.policies import POLICIES
from millgate.sim.randomness import Streams
from millgate.sim.records import Recorder
from millgate.sim.traces.synthetic import Lengths, jobs, steady
from millgate.sim.world import World

_ALL: Final = len(LANES)
# The policy, how many of the default lanes, and the `tpot_slo` of the first, in seconds; 0 for none.
_SERIES: Final[Mapping[str, tuple[str, int, float]]] = {
    "no gate": ("no gate", 1, 0.0),
    "one lane": ("gate", 1, 0.0),
    "default lanes": ("gate", _ALL, 0.0),
    "with a tpot_slo": ("gate", _ALL, 0.2),
}
_GIANTS_PER_MINUTE: Final = (0.6, 1.8, 3.0)
_SLO_S, _PATIENCE_S, _GIANT_PATIENCE_S = 10.0, 15.0, 120.0


@dataclass(frozen=True, slots=True)
class GiantScene:
    """Engines, and for each people a second and giants a minute, with prompts of `giant_tokens` in the mean. People ask with 800 tokens, answers have 200."""

    profile: str = "llama3-70b_a100_tp4"
    engines: int = 1
    people_per_s: float = 1.0
    giants_per_minute: float = 1.8
    giant_tokens: float = 80_000.0
    policy: str = "gate"
    lanes: int = _ALL
    tpot_slo_s: float = 0.0
    warm_up_s: float = 300.0
    until_s: float = 1_800.0


_LIMITS: Final[Limits] = {
    "profile": PROFILE,
    "engines": at_least(1),
    "people_per_s": ABOVE_0,
    "giant_tokens": at_least(1),
    "warm_up_s": at_least(0),
    "until_s": ABOVE_0,
}


def play(scene: GiantScene, seed: int) -> Metrics:
    """Return the share of people with a first token in time, and how many giants of each engine had one at all a minute."""
    tpot_slo = {"tpot_slo": f"{scene.tpot_slo_s:g}s"} if scene.tpot_slo_s else {}
    lanes = default_lanes(LANES[: scene.lanes], **tpot_slo)
    streams, loop = Streams(seed), Loop()
    fleet = metered(uniform_fleet(find_profile(scene.profile), scene.engines, lanes))
    recorder = Recorder(fleet.settings.lanes)
    world = World(POLICIES[scene.policy](fleet.settings), loop, recorder)
    fleet.populate(world, streams)
    world.start_watch()
    crowds = [
        Crowd(world, Manners(constant(patience_s), agent_retries()), streams, number)
        for number, patience_s in enumerate((_PATIENCE_S, _GIANT_PATIENCE_S))
    ]
    people, giants = [FirstTokens(crowd, _SLO_S, scene.warm_up_s) for crowd in crowds]
    OpenLoop(world, crowds[0], _jobs(scene, scene.engines * scene.people_per_s, 800.0, streams, 0))
    giants_per_s = scene.engines * scene.giants_per_minute / 60.0
    OpenLoop(world, crowds[1], _jobs(scene, giants_per_s, scene.giant_tokens, streams, 1))
    loop.run(scene.until_s)
    minutes = (scene.until_s - scene.warm_up_s) / 60.0
    return {
        "people_good_share": people.good_share,
        "giants_per_minute": giants.answered / minutes / scene.engines,
    }


def _jobs(
    scene: GiantScene, per_s: float, prompt_tokens: float, streams: Streams, number: int
) -> Iterator[Job]:
    lengths = Lengths(lognormal(prompt_tokens, 0.1), lognormal(200.0, 0.5))
    times = steady(per_s, streams, number=number)
    return jobs(times, lengths, streams, until_s=scene.until_s, number=number)


def giant_prompts(knobs: Mapping[str, str] = MappingProxyType({})) -> Experiment:
    """Return the experiment with these fields of `GiantScene` set; a ValueError names the one that is wrong."""
    scene = with_knobs(GiantScene(), knobs, _LIMITS)
    check_longer("until_s", scene.until_s, scene.warm_up_s, "warm_up_s")
    check_fits("giant_tokens", scene.giant_tokens, scene.profile)

    def run(arm: Arm, seed: int) -> Measured:
        assert arm.x is not None
        policy, lanes, tpot_slo_s = _SERIES[arm.series]
        shown = replace(scene, policy=policy, lanes=lanes, tpot_slo_s=tpot_slo_s, giants_per_minute=arm.x)
        return [(arm.x, play(shown, seed))]

    return Experiment(
        name="giant_prompts",
        question="What becomes of people beside prompts that take longer to read than people wait?",
        arms=tuple(Arm(series, rate) for series in _SERIES for rate in _GIANTS_PER_MINUTE),
        run=run,
        metric="people_good_share",
        x_label="giant prompts a minute",
        y_label="people with a first token in time",
        facts=_facts,
        vary=giant_prompts,
    )


def _facts(places: Sequence[SeriesPoint]) -> Mapping[str, float]:
    return {
        f"{each.series}, {each.x:g} a minute: {name.replace('_', ' ')}": each.metrics[name].mean
        for each in places
        for name in ("people_good_share", "giants_per_minute")
    }


GIANT_PROMPTS = giant_prompts()

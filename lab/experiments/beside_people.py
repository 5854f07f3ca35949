"""agents_beside_people: coding agents and people who chat before one engine; what becomes of each, in one lane and in the default ones?

Agents come back some seconds after each answer with all that was said so far, and wait for minutes. People ask once, and leave after
15 s without a token. In one lane both are refused by what people wait for, short requests first, and agents give up their tasks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from lab.agents.generated_sessions import drawn_sessions
from lab.agents.session_users import AGENT_PATIENCE_S, agent_retries, of_agents, put_agents
from lab.default_gate import LANES, default_lanes, metered
from lab.heard import FirstTokens
from lab.knobs import ABOVE_0, PROFILE, Limits, at_least, check_longer, one_of, with_knobs
from millgate.engine.profile import find_profile
from millgate.sim.clients.crowd import Crowd, Manners, OpenLoop
from millgate.sim.experiments.contract import Arm, Experiment, Measured, Metrics, SeriesPoint
from millgate.sim.fleet import SimulatedFleet, uniform_fleet
from millgate.sim.jobs import Job
from millgate.sim.laws import constant, lognormal
from millgate.sim.loop import Loop
from millgate.sim.policies import POLICIES
from millgate.sim.randomness import Streams
from millgate.sim.records import Recorder
from millgate.sim.traces.synthetic import Lengths, jobs, steady
from millgate.sim.world import World

# Which of the default lanes there are beside the first.
_SERIES: Final[Mapping[str, tuple[str, ...]]] = {
    "one lane": (),
    "default lanes without agents": tuple([name for name in LANES if name != "agents"]),
    "default lanes": LANES,
}
_PEOPLE_PER_S: Final = (0.5, 1.5, 3.0)
_SLO_S, _PATIENCE_S = 10.0, 15.0


@dataclass(frozen=True, slots=True)
class SharedScene:
    """One engine that runs `slots` requests at most, agents whose mean contexts take `working_set` of its KV tokens, and people.

    `tpot_slo_s` is that of `interactive`, 0 for none. With `named` 0 no agent names its session: its turns are known by the prompts that they go on from.
    """

    profile: str = "llama3-70b_h100_tp8"
    slots: int = 12
    working_set: float = 0.9
    people_per_s: float = 1.5
    prompt_tokens: float = 800.0
    output_tokens: float = 300.0
    tpot_slo_s: float = 0.0
    named: int = 1
    lanes: str = "default lanes"
    warm_up_s: float = 300.0
    until_s: float = 1_500.0


_LIMITS: Final[Limits] = {
    "profile": PROFILE,
    "slots": at_least(1),
    "working_set": ABOVE_0,
    "prompt_tokens": at_least(1),
    "output_tokens": at_least(1),
    "tpot_slo_s": at_least(0),
    "named": one_of(0, 1),
    "warm_up_s": at_least(0),
    "until_s": ABOVE_0,
}


def play(scene: SharedScene, seed: int) -> Metrics:
    """Return the share of people with a first token in time, and how many turns agents finish and tasks they give up a minute."""
    streams, loop = Streams(seed), Loop()
    fleet = _fleet(scene)
    recorder = Recorder(fleet.settings.lanes)
    world = World(POLICIES["gate"](fleet.settings), loop, recorder, names_sessions=bool(scene.named))
    fleet.populate(world, streams)
    world.start_watch()
    agents = put_agents(
        world,
        Crowd(world, Manners(constant(AGENT_PATIENCE_S), agent_retries()), streams),
        map(of_agents, drawn_sessions(streams)),
        streams,
        scene.working_set * find_profile(scene.profile).kv_tokens,
        spread_s=scene.warm_up_s / 2,
        until_s=scene.until_s,
    )
    crowd = Crowd(world, Manners(constant(_PATIENCE_S), agent_retries()), streams, 1)
    people = FirstTokens(crowd, _SLO_S, scene.warm_up_s)
    OpenLoop(world, crowd, _people_jobs(scene, streams))
    loop.run(scene.warm_up_s)
    turns, given_up = agents.finished_turns, agents.given_up
    loop.run(scene.until_s)
    minutes = (scene.until_s - scene.warm_up_s) / 60.0
    return {
        "people_good_share": people.good_share,
        "turns_per_minute": (agents.finished_turns - turns) / minutes,
        "given_up_per_minute": (agents.given_up - given_up) / minutes,
    }


def _fleet(scene: SharedScene) -> SimulatedFleet:
    """Return one engine behind the lanes of this series."""
    tpot_slo = {"tpot_slo": f"{scene.tpot_slo_s:g}s"} if scene.tpot_slo_s else {}
    lanes = default_lanes(_SERIES[scene.lanes], **tpot_slo)
    fleet = uniform_fleet(find_profile(scene.profile), 1, lanes, max_inflight=scene.slots)
    return replace(metered(fleet), prefix_caching=True)


def _people_jobs(scene: SharedScene, streams: Streams) -> Iterator[Job]:
    lengths = Lengths(lognormal(scene.prompt_tokens, 0.5), lognormal(scene.output_tokens, 0.5))
    return jobs(steady(scene.people_per_s, streams, number=1), lengths, streams, until_s=scene.until_s)


def agents_beside_people(knobs: Mapping[str, str] = MappingProxyType({})) -> Experiment:
    """Return the experiment with these fields of `SharedScene` set; a ValueError names the one that is wrong."""
    scene = with_knobs(SharedScene(), knobs, _LIMITS)
    check_longer("until_s", scene.until_s, scene.warm_up_s, "warm_up_s")

    def run(arm: Arm, seed: int) -> Measured:
        assert arm.x is not None
        return [(arm.x, play(replace(scene, lanes=arm.series, people_per_s=arm.x), seed))]

    return Experiment(
        name="agents_beside_people",
        question="What becomes of people and of agents before one engine, in one lane and in the default ones?",
        arms=tuple(Arm(series, rate) for series in _SERIES for rate in _PEOPLE_PER_S),
        run=run,
        metric="turns_per_minute",
        x_label="people a second",
        y_label="finished turns of agents a minute",
        facts=_facts,
        vary=agents_beside_people,
    )


def _facts(places: Sequence[SeriesPoint]) -> Mapping[str, float]:
    names = ("people_good_share", "turns_per_minute", "given_up_per_minute")
    return {
        f"{each.series}, {each.x:g} people a second: {name.replace('_', ' ')}": each.metrics[name].mean
        for each in places
        for name in names
    }


AGENTS_BESIDE_PEOPLE = agents_beside_people()

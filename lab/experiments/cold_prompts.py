"""cold_prompts: long prompts that no engine holds, thrown among agents whose contexts fit; what do the agents' turns wait for?

The agents come back to the engine that holds their context. A cold prompt takes an engine seconds to read, and the turns that come
to it in that time stand behind it. Turns that only read what is new are the warm ones; a session's first prompt is none. The gate is
one without a configuration: agents, and long prompts that are not theirs, have a lane each, and prompts are metered.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from lab.agents.generated_sessions import drawn_sessions
from lab.agents.session_users import AGENT_PATIENCE_S, agent_retries, of_agents, put_agents
from lab.default_gate import default_lanes, metered
from lab.knobs import ABOVE_0, PROFILE, Limits, at_least, check_fits, check_longer, one_of, with_knobs
from millgate.core.words import Outcome
from millgate.engine.profile import find_profile
from millgate.sim.clients.crowd import Crowd, Manners, OpenLoop
from millgate.sim.experiments.contract import Arm, Experiment, Measured, Metrics, SeriesPoint
from millgate.sim.fleet import uniform_fleet
from millgate.sim.jobs import PREFIX_UNIT_TOKENS, Job
from millgate.sim.laws import constant
from millgate.sim.loop import Loop
from millgate.sim.policies import POLICIES
from millgate.sim.randomness import Streams
from millgate.sim.records import Recorder, ResultSketch
from millgate.sim.traces.synthetic import steady
from millgate.sim.visit import Visit
from millgate.sim.world import World

_SERIES: Final = ("no gate", "gate")
_COLD_PER_MINUTE: Final = (0.0, 3.0, 6.0)


@dataclass(frozen=True, slots=True)
class ColdScene:
    """Equal engines, agents whose mean contexts take `working_set` of the KV tokens, and cold prompts a minute over all engines.

    With `named` 0 no agent names its session: its turns are known by the prompts that they go on from.
    """

    engines: int = 8
    profile: str = "llama3-70b_h100_tp8"
    working_set: float = 0.4
    cold_tokens: int = 100_000
    cold_output_tokens: int = 200
    cold_per_minute: float = 6.0
    named: int = 1
    policy: str = "gate"
    warm_up_s: float = 300.0
    until_s: float = 1_500.0


_LIMITS: Final[Limits] = {
    "engines": at_least(1),
    "profile": PROFILE,
    "working_set": ABOVE_0,
    "cold_tokens": at_least(1),
    "cold_output_tokens": at_least(1),
    "named": one_of(0, 1),
    "warm_up_s": at_least(0),
    "until_s": ABOVE_0,
}


class _FirstTokens:
    """The times to first token of a crowd's requests, from each one's first attempt on; of a session's first turn it is not kept."""

    def __init__(self, crowd: Crowd, from_s: float) -> None:
        self.times = ResultSketch()
        self._from_s = from_s
        self._begun: set[int] = set()
        self._next, crowd.on_over = crowd.on_over, self._over

    def _over(self, visit: Visit, outcome: Outcome | None) -> None:
        if visit.first_token_at is not None:
            self._keep(visit, visit.first_token_at - visit.first_at)
        if self._next is not None:
            self._next(visit, outcome)

    def _keep(self, visit: Visit, ttft_s: float) -> None:
        session = visit.job.session
        if session and session not in self._begun:
            self._begun.add(session)
        elif visit.first_at >= self._from_s:
            self.times.add(ttft_s)


def play(scene: ColdScene, seed: int) -> Metrics:
    """Return warm turns' and cold prompts' times to first token in seconds, and how many of each a minute, without the warm-up."""
    streams, loop = Streams(seed), Loop()
    profile = find_profile(scene.profile)
    fleet = replace(metered(uniform_fleet(profile, scene.engines, default_lanes())), prefix_caching=True)
    recorder = Recorder(fleet.settings.lanes)
    world = World(POLICIES[scene.policy](fleet.settings), loop, recorder, names_sessions=bool(scene.named))
    fleet.populate(world, streams)
    world.start_watch()
    manners = Manners(constant(AGENT_PATIENCE_S), agent_retries())
    agents, others = [Crowd(world, manners, streams, number) for number in (0, 1)]
    put_agents(
        world,
        agents,
        map(of_agents, drawn_sessions(streams)),
        streams,
        scene.working_set * scene.engines * profile.kv_tokens,
        spread_s=scene.warm_up_s / 2,
        until_s=scene.until_s,
    )
    if scene.cold_per_minute:
        OpenLoop(world, others, _cold_prompts(scene, streams))
    warm, cold = [_FirstTokens(crowd, scene.warm_up_s).times for crowd in (agents, others)]
    loop.run(scene.until_s)
    minutes = (scene.until_s - scene.warm_up_s) / 60.0
    return {
        "warm_ttft_p95_s": warm.quantile(0.95),
        "warm_ttft_mean_s": warm.mean,
        "warm_per_minute": warm.count / minutes,
        "cold_ttft_p95_s": cold.quantile(0.95),
        "cold_per_minute": cold.count / minutes,
    }


def _cold_prompts(scene: ColdScene, streams: Streams) -> Iterator[Job]:
    """Yield prompts that have nothing in common with any other; their units have numbers below those of all sessions."""
    units = scene.cold_tokens // PREFIX_UNIT_TOKENS
    for number, at_s in enumerate(steady(scene.cold_per_minute / 60.0, streams, number=1), 1):
        ids = tuple(range(-number * units, (1 - number) * units))
        yield Job(at_s, scene.cold_tokens, scene.cold_output_tokens, prefix_ids=ids)


def cold_prompts(knobs: Mapping[str, str] = MappingProxyType({})) -> Experiment:
    """Return the experiment with these fields of `ColdScene` set; a ValueError names the one that is wrong."""
    scene = with_knobs(ColdScene(), knobs, _LIMITS)
    check_longer("until_s", scene.until_s, scene.warm_up_s, "warm_up_s")
    check_fits("cold_tokens", scene.cold_tokens + scene.cold_output_tokens, scene.profile)

    def run(arm: Arm, seed: int) -> Measured:
        assert arm.x is not None
        return [(arm.x, play(replace(scene, policy=arm.series, cold_per_minute=arm.x), seed))]

    return Experiment(
        name="cold_prompts",
        question="How much later are the first tokens of warm sessions for cold prompts beside them?",
        arms=tuple(Arm(series, rate) for series in _SERIES for rate in _COLD_PER_MINUTE),
        run=run,
        metric="warm_ttft_p95_s",
        x_label="cold prompts a minute",
        y_label="p95 of warm turns' time to first token, s",
        facts=_facts,
        vary=cold_prompts,
    )


def _facts(places: Sequence[SeriesPoint]) -> Mapping[str, float]:
    """Return how many times as late the p95 is with cold prompts as it is without."""
    late = {(each.series, each.x): each.metrics["warm_ttft_p95_s"].mean for each in places}
    return {
        f"{series} at {x:g}: p95 over that without": value / late[series, 0.0]
        for (series, x), value in late.items()
        if x and late.get((series, 0.0))
    }


COLD_PROMPTS = cold_prompts()

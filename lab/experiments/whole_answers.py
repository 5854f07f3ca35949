"""whole_answers: the same users wait for whole answers or stream them; how many are answered before they leave?

Nothing tells when a prompt of a whole answer has been read, so that the gate must learn from the whole time how fast its engine
reads and writes. Users leave after `patience_s` without a token, or without the whole answer. The gate knows no profile of its engine.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from lab.agents.session_users import agent_retries
from lab.default_gate import default_lanes, metered
from lab.knobs import ABOVE_0, PROFILE, Limits, at_least, check_longer, one_of, with_knobs
from millgate.core.settings import ServicePrior
from millgate.core.words import Outcome
from millgate.engine.profile import find_profile, scaled
from millgate.sim.clients.crowd import Crowd, Manners, OpenLoop
from millgate.sim.experiments.contract import Arm, Experiment, Measured, Metrics
from millgate.sim.fleet import SimulatedFleet, uniform_fleet
from millgate.sim.jobs import Job
from millgate.sim.laws import Law, constant, lognormal
from millgate.sim.loop import Loop
from millgate.sim.policies import POLICIES
from millgate.sim.randomness import Streams
from millgate.sim.records import Recorder
from millgate.sim.traces.synthetic import Lengths, jobs, steady
from millgate.sim.visit import Visit
from millgate.sim.world import World

_SERIES: Final = ("streamed", "whole")
_USERS_PER_S: Final = (20.0, 40.0, 60.0)


@dataclass(frozen=True, slots=True)
class WholeScene:
    """One engine, and users who ask alike; `spread` is the squared variation of lengths, 0 for equal ones.

    The engine is so many times `slower` than the profile. Its `lanes` are the first of the default ones, or all of them.
    """

    profile: str = "llama3-8b_h100_tp1"
    slower: float = 1.0
    slots: int = 64
    lanes: str = "first"
    prompt_tokens: float = 1_000.0
    output_tokens: float = 80.0
    spread: float = 0.5
    patience_s: float = 30.0
    users_per_s: float = 60.0
    answers: str = "whole"
    warm_up_s: float = 60.0
    until_s: float = 300.0


_LIMITS: Final[Limits] = {
    "profile": PROFILE,
    "slower": ABOVE_0,
    "slots": at_least(1),
    "lanes": one_of("first", "default"),
    "prompt_tokens": at_least(1),
    "output_tokens": at_least(1),
    "spread": at_least(0),
    "patience_s": ABOVE_0,
    "warm_up_s": at_least(0),
    "until_s": ABOVE_0,
}


def play(scene: WholeScene, seed: int) -> Metrics:
    """Return how many users a second are answered before they leave, of those that came after the warm-up."""
    streams, loop = Streams(seed), Loop()
    fleet = _fleet(scene)
    world = World(POLICIES["gate"](fleet.settings), loop, Recorder(fleet.settings.lanes))
    fleet.populate(world, streams)
    world.start_watch()
    users = Crowd(world, Manners(constant(scene.patience_s), agent_retries()), streams)
    answered = 0

    def over(visit: Visit, outcome: Outcome | None) -> None:
        nonlocal answered
        answered += outcome is None and visit.first_at >= scene.warm_up_s

    users.on_over = over
    OpenLoop(world, users, _jobs(scene, streams))
    loop.run(scene.until_s)
    return {"answered_per_s": answered / (scene.until_s - scene.warm_up_s)}


def _fleet(scene: WholeScene) -> SimulatedFleet:
    profile = scaled(find_profile(scene.profile), 1.0 / scene.slower)
    lanes = default_lanes() if scene.lanes == "default" else default_lanes(())
    fleet = metered(uniform_fleet(profile, 1, lanes, max_inflight=scene.slots))
    engines = tuple([replace(each, prior=ServicePrior()) for each in fleet.settings.engines])
    return replace(fleet, settings=replace(fleet.settings, engines=engines))


def _jobs(scene: WholeScene, streams: Streams) -> Iterator[Job]:
    lengths = Lengths(*[_law(scene, tokens) for tokens in (scene.prompt_tokens, scene.output_tokens)])
    arrivals = steady(scene.users_per_s, streams, number=1)
    for job in jobs(arrivals, lengths, streams, until_s=scene.until_s):
        yield job._replace(stream=scene.answers == "streamed")


def _law(scene: WholeScene, tokens: float) -> Law:
    return lognormal(tokens, scene.spread) if scene.spread else constant(tokens)


def whole_answers(knobs: Mapping[str, str] = MappingProxyType({})) -> Experiment:
    """Return the experiment with these fields of `WholeScene` set; a ValueError names the one that is wrong."""
    scene = with_knobs(WholeScene(), knobs, _LIMITS)
    check_longer("until_s", scene.until_s, scene.warm_up_s, "warm_up_s")

    def run(arm: Arm, seed: int) -> Measured:
        assert arm.x is not None
        return [(arm.x, play(replace(scene, answers=arm.series, users_per_s=arm.x), seed))]

    return Experiment(
        name="whole_answers",
        question="What does it cost that nothing tells when a whole answer's prompt has been read?",
        arms=tuple(Arm(series, rate) for series in _SERIES for rate in _USERS_PER_S),
        run=run,
        metric="answered_per_s",
        x_label="users a second",
        y_label="users a second who are answered before they leave",
        vary=whole_answers,
    )


WHOLE_ANSWERS = whole_answers()

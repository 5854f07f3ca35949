"""adapters: requests for many adapters before engines that hold a few each; what does a gate save that knows where they are loaded?"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from lab.engines.adapted import populate
from lab.knobs import ABOVE_0, PROFILE, Limits, at_least, with_knobs
from lab.laws import uniform
from millgate.core.settings import LaneSettings
from millgate.engine.profile import find_profile
from millgate.sim.clients.crowd import Crowd, Manners, OpenLoop
from millgate.sim.experiments.contract import Arm, Experiment, Measured, Metrics
from millgate.sim.fleet import SimulatedFleet, uniform_fleet
from millgate.sim.jobs import Job
from millgate.sim.laws import constant
from millgate.sim.loop import Loop
from millgate.sim.policies import POLICIES
from millgate.sim.randomness import Streams
from millgate.sim.records import Recorder
from millgate.sim.traces.synthetic import Lengths, jobs, steady
from millgate.sim.world import World

_SERIES: Final = ("told nothing", "told the adapters")
_COUNTS: Final = (8.0, 16.0, 24.0)
_PATIENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class AdapterScene:
    """Equal engines with `slots` adapters at once, and requests a second; `skew` 1 asks for all adapters alike, 2 for some more often."""

    engines: int = 8
    profile: str = "llama3-8b_h100_tp1"
    slots: int = 2
    rate_per_s: float = 24.0
    skew: float = 1.0
    until_s: float = 300.0


_LIMITS: Final[Limits] = {
    "engines": at_least(1),
    "profile": PROFILE,
    "slots": at_least(1),
    "rate_per_s": ABOVE_0,
    "skew": ABOVE_0,
    "until_s": ABOVE_0,
}


def _fleet(scene: AdapterScene, names: tuple[str, ...], *, told: bool) -> SimulatedFleet:
    lane = LaneSettings("lane", ttft_slo_s=2.0)
    fleet = uniform_fleet(find_profile(scene.profile), scene.engines, [lane])
    if not told:
        return fleet
    engines = tuple(
        replace(engine, models=("base",), adapters=names, adapter_slots=scene.slots)
        for engine in fleet.settings.engines
    )
    return replace(fleet, settings=replace(fleet.settings, engines=engines))


def _asked(scene: AdapterScene, names: tuple[str, ...], streams: Streams) -> Iterator[Job]:
    lots = streams.draws("adapters", uniform(0.0, 1.0).sample)
    lengths = Lengths(uniform(200, 1_000), uniform(50, 400))
    for job in jobs(steady(scene.rate_per_s, streams), lengths, streams, until_s=scene.until_s):
        yield job._replace(adapter=names[int(len(names) * lots.next() ** scene.skew)])


def play(scene: AdapterScene, count: int, seed: int, *, told: bool) -> Metrics:
    """Ask for so many adapters; return the share of good requests and the p95 of the time to first token in seconds."""
    streams, loop = Streams(seed), Loop()
    names = tuple(f"adapter-{number}" for number in range(count))
    fleet = _fleet(scene, names, told=told)
    recorder = Recorder(fleet.settings.lanes)
    world = World(POLICIES["gate"](fleet.settings), loop, recorder)
    populate(world, fleet, scene.slots)
    OpenLoop(world, Crowd(world, Manners(constant(_PATIENCE_S)), streams), _asked(scene, names, streams))
    loop.run(scene.until_s + _PATIENCE_S)
    summary = world.summary(recorder)
    return {"good_share": summary.good_share, "ttft_p95_s": summary.ttft_s.p95}


def adapters(knobs: Mapping[str, str] = MappingProxyType({})) -> Experiment:
    """Return the experiment with these fields of `AdapterScene` set; a ValueError names the one that is wrong."""
    scene = with_knobs(AdapterScene(), knobs, _LIMITS)

    def run(arm: Arm, seed: int) -> Measured:
        assert arm.x is not None
        return [(arm.x, play(scene, round(arm.x), seed, told=arm.series == _SERIES[1]))]

    return Experiment(
        name="adapters",
        question="How many requests for adapters are good, where the gate is told of them and where it is not?",
        arms=tuple(Arm(series, count) for series in _SERIES for count in _COUNTS),
        run=run,
        metric="good_share",
        x_label="adapters",
        y_label="share of good requests",
        vary=adapters,
    )


ADAPTERS = adapters()

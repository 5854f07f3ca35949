"""One overload scenario, played under one policy and one seed; every experiment is made of these."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from lab.changing_rates import Rate, changing
from millgate.core.settings import LaneSettings
from millgate.core.words import Outcome
from millgate.engine.profile import find_profile
from millgate.sim.bounds.work import capacity_per_s
from millgate.sim.clients.crowd import Crowd, Manners, OpenLoop
from millgate.sim.driver import DecidingCore
from millgate.sim.engines.troubles import EngineTrouble
from millgate.sim.fleet import EngineManners, SimulatedFleet, uniform_fleet
from millgate.sim.jobs import Job
from millgate.sim.loop import ENGINES, Loop
from millgate.sim.policies import POLICIES
from millgate.sim.randomness import Streams
from millgate.sim.records import Recorder, Summary
from millgate.sim.traces.synthetic import LENGTHS, Lengths, jobs
from millgate.sim.world import World

# A run ends this long after the last arrival at the latest, whatever still runs.
_AFTERMATH_S = 120.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fleet of equal engines, a crowd, a lane; `load` is a share of the fleet's capacity, over time.

    Requests count from `warm_up_s` on and come until `until_s`. With `bin_s` the run is told in stretches of that length, too.
    """

    policy: str = "gate"
    profile: str = "llama3-8b_h100_tp1"
    engines: int = 1
    max_inflight: int = 64
    lane: LaneSettings = field(
        default_factory=lambda: LaneSettings("interactive", ttft_slo_s=2.0, deadline_s=2.0, tpot_slo_s=0.1)
    )
    lengths: Lengths = field(default_factory=lambda: LENGTHS["azure_conversation"])
    load: Rate = field(default_factory=lambda: lambda _now: 1.0)
    highest_load: float = 1.0
    manners: Manners = field(default_factory=Manners)
    engine_manners: EngineManners = field(default_factory=EngineManners)
    telemetry_delay_s: float = 0.0
    troubles: tuple[EngineTrouble, ...] = ()
    tenants: int = 1
    warm_up_s: float = 20.0
    until_s: float = 80.0
    bin_s: float | None = None
    aftermath_s: float = _AFTERMATH_S

    def at_load(self, load: float) -> "Scenario":
        """Return the same under a constant load."""
        return replace(self, load=lambda _now: load, highest_load=load)

    @property
    def capacity_per_s(self) -> float:
        """Requests per second that the fleet can serve with full batches (bounds/work)."""
        profile = find_profile(self.profile)
        return self.engines * capacity_per_s(profile, self.lengths, self.max_inflight)


class Stretch(NamedTuple):
    """Attempts that came in one stretch of time, and requests that ended good in it."""

    attempts: int
    good: int


@dataclass(frozen=True, slots=True)
class Played:
    """What a run showed."""

    summary: Summary
    stretches: tuple[Stretch, ...]
    capacity_per_s: float

    @property
    def goodput_share(self) -> float:
        """Good requests per second over the fleet's capacity."""
        return self.summary.goodput_per_s / self.capacity_per_s


def play(scenario: Scenario, seed: int, core: DecidingCore | None = None) -> Played:
    """Play one scenario under one seed; `core` replaces the policy named by the scenario."""
    streams = Streams(seed)
    fleet = scenario_fleet(scenario)
    loop = Loop()
    recorder = Recorder(fleet.settings.lanes, from_s=scenario.warm_up_s)
    world = World(core or POLICIES[scenario.policy](fleet.settings), loop, recorder)
    fleet.populate(world, streams, scenario.engine_manners, scenario.troubles)
    world.start_watch(scenario.telemetry_delay_s)
    OpenLoop(world, Crowd(world, scenario.manners, streams), scenario_jobs(scenario, streams))
    counted: list[Stretch] = []
    for end_s in _ends_s(scenario):
        # Before all else at that instant: what happens then is the next stretch's.
        loop.at(end_s, lambda _: counted.append(_counts(recorder)), None, ENGINES - 1)
    loop.run(scenario.until_s + scenario.aftermath_s)
    stretches = [
        Stretch(now.attempts - before.attempts, now.good - before.good)
        for before, now in pairwise([Stretch(0, 0), *counted])
    ]
    return Played(world.summary(recorder), tuple(stretches), scenario.capacity_per_s)


def _ends_s(scenario: Scenario) -> list[float]:
    """Return the ends of the stretches in which a run is told."""
    if scenario.bin_s is None:
        return []
    return [scenario.bin_s * number for number in range(1, int(scenario.until_s / scenario.bin_s) + 1)]


def _counts(recorder: Recorder) -> Stretch:
    return Stretch(recorder.attempts, recorder.outcomes[Outcome.GOOD.value])


def scenario_fleet(scenario: Scenario) -> SimulatedFleet:
    """Return the fleet of a scenario."""
    return uniform_fleet(
        find_profile(scenario.profile), scenario.engines, [scenario.lane], max_inflight=scenario.max_inflight
    )


def scenario_jobs(scenario: Scenario, streams: Streams) -> Iterator[Job]:
    """Yield the jobs of a scenario."""
    capacity = scenario.capacity_per_s
    times = changing(lambda now: capacity * scenario.load(now), capacity * scenario.highest_load, streams)
    return jobs(times, scenario.lengths, streams, until_s=scenario.until_s, tenants=scenario.tenants)

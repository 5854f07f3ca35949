"""A trace through a gate and its engines, once: what would have become of these requests."""

from collections.abc import Iterable
from typing import NamedTuple

from millgate.sim.clients.crowd import Crowd, Manners, OpenLoop
from millgate.sim.fleet import SimulatedFleet
from millgate.sim.jobs import Job
from millgate.sim.loop import Loop
from millgate.sim.policies import POLICIES
from millgate.sim.randomness import Streams
from millgate.sim.records import Recorder, Summary
from millgate.sim.world import World


class Replayed(NamedTuple):
    """What came of a trace; `lasted_s` is virtual time until the last engine was idle."""

    summary: Summary
    lasted_s: float


def replay(
    jobs: Iterable[Job],
    fleet: SimulatedFleet,
    policy: str = "gate",
    manners: Manners | None = None,
    seed: int = 1,
) -> Replayed:
    """Let these jobs come at their times; memory does not grow with their number."""
    loop, streams = Loop(), Streams(seed)
    recorder = Recorder(fleet.settings.lanes)
    world = World(POLICIES[policy](fleet.settings), loop, recorder)
    fleet.populate(world, streams)
    world.start_watch()
    OpenLoop(world, Crowd(world, manners or Manners(), streams), iter(jobs))
    loop.run()
    return Replayed(world.summary(recorder), loop.now)

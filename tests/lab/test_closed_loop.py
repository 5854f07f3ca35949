"""Users who ask again after their answer."""

from lab.closed_loop import ClosedLoop

from millgate.core.settings import LaneSettings
from millgate.engine.profile import find_profile
from millgate.sim.clients.crowd import Crowd, Manners
from millgate.sim.fleet import uniform_fleet
from millgate.sim.laws import exponential
from millgate.sim.loop import Loop
from millgate.sim.randomness import Streams
from millgate.sim.records import Recorder
from millgate.sim.traces.synthetic import LENGTHS, jobs, steady
from millgate.sim.world import World
from millgate.wiring.governor import build_governor

PROFILE = find_profile("llama3-8b_h100_tp1")


def test_a_closed_loop_never_has_more_requests_open_than_users() -> None:
    fleet = uniform_fleet(PROFILE, 1, [LaneSettings("batch", deadline_s=1e6, ttft_slo_s=1e6)], max_inflight=4)
    loop, governor, streams = Loop(), build_governor(fleet.settings, 0.0), Streams(1)
    world = World(governor, loop, recorder := Recorder(fleet.settings.lanes))
    fleet.populate(world, streams)
    endless = jobs(steady(1.0, streams), LENGTHS["arena"], streams)
    ClosedLoop(
        world,
        Crowd(world, Manners(), streams),
        endless,
        6,
        streams.draws("think", exponential(0.5).sample),
        60.0,
    )
    most = 0

    def look(_nothing: None) -> None:
        nonlocal most
        lane = governor.snapshot(loop.now).lanes[0]
        most = max(most, lane.running + lane.queued)
        if not world.is_over():
            loop.at(loop.now + 0.1, look, None)

    loop.at(0.0, look, None)
    loop.run()

    assert most == 6
    assert recorder.requests > 60

"""The governor before simulated engines that read and engines that answer: what a request takes, and what is left afterwards."""

from dataclasses import replace

import pytest
from lab.books import unread_books

from millgate.core.governor import Governor
from millgate.core.settings import KV_LEASE_S, LaneSettings
from millgate.core.words import KvTransfer, Outcome, Role
from millgate.engine.profile import find_profile
from millgate.sim.clients.crowd import Crowd, Manners, OpenLoop
from millgate.sim.engines.handoffs import LinkSpeed
from millgate.sim.engines.troubles import EngineTrouble
from millgate.sim.fleet import EngineManners, SimulatedFleet, uniform_fleet
from millgate.sim.jobs import Job
from millgate.sim.laws import constant
from millgate.sim.loop import Loop
from millgate.sim.policies import POLICIES
from millgate.sim.randomness import Streams
from millgate.sim.records import Recorder
from millgate.sim.world import World
from millgate.wiring.governor import build_governor

PROFILE = find_profile("llama3-70b_h100_tp4")
LANE = LaneSettings("interactive", ttft_slo_s=5.0, deadline_s=5.0, tpot_slo_s=0.05)


def fleet(*, reads: int = 1, writes: int = 1, transfer: KvTransfer = KvTransfer.NIXL) -> SimulatedFleet:
    whole = uniform_fleet(PROFILE, reads + writes, [LANE], max_inflight=64)
    roles = [Role.PREFILL] * reads + [Role.DECODE] * writes
    engines = [
        replace(each, role=role, kv_transfer=transfer)
        for each, role in zip(whole.settings.engines, roles, strict=True)
    ]
    link = LinkSpeed(setup_s=0.02, bytes_per_token=100_000.0, bytes_per_s=10e9)
    return replace(whole, settings=replace(whole.settings, engines=tuple(engines)), link=link)


def played(
    jobs: list[Job],
    *troubles: EngineTrouble,
    patience_s: float = 60.0,
    until_s: float = 300.0,
    transfer: KvTransfer = KvTransfer.NIXL,
) -> Governor:
    """Return the gate after these jobs, long after the last of them."""
    loop, streams = Loop(), Streams(1)
    governor = build_governor(fleet(transfer=transfer).settings, 0.0)
    world = World(governor, loop, unread_books())
    fleet(transfer=transfer).populate(world, streams, troubles=troubles)
    world.start_watch()
    manners = Manners(patience=constant(patience_s))
    OpenLoop(world, Crowd(world, manners, streams), iter(jobs))
    loop.run(until_s)
    return governor


def answers(governor: Governor) -> int:
    outcomes = dict(governor.snapshot(400.0).lanes[0].outcomes)
    return outcomes.get(Outcome.GOOD, 0) + outcomes.get(Outcome.LATE, 0)


def steady(count: int, every_s: float = 0.25) -> list[Job]:
    return [Job(number * every_s, 3_000, 100) for number in range(count)]


def is_idle(governor: Governor) -> bool:
    engines = governor.snapshot(400.0).engines
    return all((each.running, each.kv_tokens, each.prefill_tokens) == (0, 0, 0) for each in engines)


def test_a_prompt_that_is_read_for_a_client_that_has_left_goes_at_the_end_of_its_lease() -> None:
    """On an engine that reads on after a hang-up it stayed for good, so that one full of such prompts ran nothing more."""
    loop, streams = Loop(), Streams(1)
    world = World(build_governor(fleet().settings, 0.0), loop, unread_books())
    fleet().populate(world, streams, EngineManners(ignores_hangups=True))
    world.start_watch()
    crowd = Crowd(world, Manners(patience=constant(1.0)), streams)
    OpenLoop(world, crowd, iter([Job(0.0, 60_000, 10)] * 3))
    loop.run(30.0)
    assert world.is_over()
    assert max(station.read().kv_share or 0.0 for station in world.stations.values()) > 0.1
    loop.run(90.0)

    assert [station.read() for station in world.stations.values()] == [(0, 0, 0.0)] * 2


def test_a_prompt_that_is_found_where_it_is_read_and_where_it_is_answered_counts_once() -> None:
    """Both caches counted as work: with prompts in common half of it was waste, though each answer was good."""
    loop, streams, recorder = Loop(), Streams(1), Recorder([LANE])
    apart = replace(fleet(), prefix_caching=True)
    world = World(POLICIES["no gate"](apart.settings), loop, recorder)
    apart.populate(world, streams)
    turns = [Job(float(number), 5_130, 20, prefix_ids=tuple(range(10))) for number in range(20)]
    OpenLoop(world, Crowd(world, Manners(), streams), iter(turns))
    loop.run()
    summary = world.summary(recorder)

    assert summary.outcomes == {"good": 20}
    assert summary.waste < 0.01
    assert summary.hit_share == pytest.approx(19 * 5_120 / (20 * 5_130))


def test_most_prompts_are_read_apart_and_nothing_stays_taken() -> None:
    governor = played(steady(200))
    legs = governor.snapshot(300.0).legs
    assert legs.begun > 100
    assert legs.fetched == legs.begun
    assert (legs.lost, legs.expired) == (0, 0)
    assert answers(governor) == 200
    assert is_idle(governor)


def test_a_transfer_takes_what_its_link_takes() -> None:
    governor = played(steady(200))
    legs = governor.snapshot(300.0).legs
    link_s = 0.02 + 3_000 * 100_000.0 / 10e9
    assert legs.transfer_s / legs.fetched == pytest.approx(link_s + 0.02, abs=0.02)


def test_clients_that_leave_cost_the_reading_engine_its_lease_and_no_more() -> None:
    governor = played(steady(200, 0.1), patience_s=0.4, until_s=20.0 + KV_LEASE_S + 60.0)
    assert is_idle(governor)


def test_a_reading_engine_that_crashes_leaves_its_prompts_to_the_other() -> None:
    engine = fleet().settings.engines[0].name
    crash = EngineTrouble("loss", engine, at_s=10.0, for_s=5.0)
    governor = played(steady(200), crash)
    assert governor.snapshot(300.0).legs.lost > 0
    assert answers(governor) > 150
    assert is_idle(governor)


def test_where_engines_work_in_pairs_every_prompt_is_read_apart() -> None:
    governor = played(steady(200), transfer=KvTransfer.SGLANG)
    assert governor.snapshot(300.0).legs[:4] == (200, 200, 0, 0)
    assert answers(governor) == 200
    assert is_idle(governor)


def test_a_reading_engine_of_a_pair_that_crashes_fails_what_it_reads() -> None:
    crash = EngineTrouble("loss", fleet().settings.engines[0].name, at_s=10.0, for_s=5.0)
    governor = played(steady(200), crash, transfer=KvTransfer.SGLANG)
    found = governor.snapshot(300.0)
    assert found.legs.lost > 0
    assert dict(found.lanes[0].outcomes)[Outcome.ENGINE_FAILED] >= found.legs.lost
    assert answers(governor) > 100
    assert is_idle(governor)

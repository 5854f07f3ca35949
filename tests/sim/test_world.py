"""Stories of users, engines and the governor between them."""

from dataclasses import dataclass, replace
from typing import Literal

import pytest

from millgate.core.decisions import Admit, Decision, Queue, Reshaped, Yield
from millgate.core.events import Arrived, Event
from millgate.core.governor import Governor
from millgate.core.settings import LaneSettings, LimitSettings
from millgate.core.words import Reason
from millgate.engine.profile import find_profile
from millgate.sim.clients.crowd import Crowd, Manners, OpenLoop
from millgate.sim.clients.retry_behaviour import NEVER, Honouring, Refreshing, Sdk
from millgate.sim.engines.troubles import EngineTrouble
from millgate.sim.fleet import EngineManners, SimulatedFleet, uniform_fleet
from millgate.sim.jobs import Job
from millgate.sim.laws import constant, exponential
from millgate.sim.loop import Loop
from millgate.sim.policies import POLICIES, OpenDoor
from millgate.sim.randomness import Streams
from millgate.sim.records import Recorder, Times
from millgate.sim.traces.synthetic import LENGTHS, jobs, steady
from millgate.sim.world import World
from millgate.wiring.governor import build_governor

PROFILE = find_profile("llama3-8b_h100_tp1")
LANE = LaneSettings("interactive", ttft_slo_s=2.0, deadline_s=2.0)


@dataclass
class Stage:
    """A world that has been played to its end."""

    world: World
    recorder: Recorder
    governor: Governor

    @property
    def outcomes(self) -> dict[str, int]:
        return dict(self.recorder.outcomes)


def play(
    coming: list[Job],
    manners: Manners,
    *,
    engines: int = 1,
    cap: int = 4,
    lane: LaneSettings = LANE,
    engine_manners: EngineManners | None = None,
    troubles: tuple[EngineTrouble, ...] = (),
    seed: int = 1,
    names_sessions: bool = True,
) -> Stage:
    fleet = uniform_fleet(PROFILE, engines, [lane], max_inflight=cap)
    loop, governor = Loop(), build_governor(fleet.settings, 0.0)
    recorder = Recorder(fleet.settings.lanes)
    world = World(governor, loop, recorder, names_sessions=names_sessions)
    fleet.populate(world, Streams(seed), engine_manners or EngineManners(), troubles)
    world.start_watch()
    OpenLoop(world, Crowd(world, manners, Streams(seed)), iter(coming))
    loop.run()
    return Stage(world, recorder, governor)


def crowd_of(count: int, rate_per_s: float = 30.0) -> list[Job]:
    streams = Streams(5)
    source = jobs(steady(rate_per_s, streams), LENGTHS["azure_conversation"], streams)
    return [next(source) for _ in range(count)]


def nothing_is_left(stage: Stage) -> None:
    """INV-1 and INV-3 when all is over: every attempt has one outcome, every permit has ended."""
    shot = stage.governor.snapshot(stage.world.loop.now)
    lane = shot.lanes[0]
    assert stage.world.is_over()
    assert lane.arrived == sum(count for _, count in lane.outcomes) == stage.recorder.attempts
    assert [(engine.running, engine.departing, engine.kv_tokens) for engine in shot.engines] == [
        (0, 0, 0) for _ in shot.engines
    ]
    assert sum(stage.recorder.outcomes.values()) == stage.recorder.requests


MANNERS = {
    "patient": Manners(),
    "impatient": Manners(exponential(0.5), NEVER),
    "refreshing": Manners(constant(0.3), Refreshing(chance=1.0, most=3, pause_s=0.2)),
    "sdk": Manners(constant(1.0), Sdk()),
    "naive": Manners(constant(1.0), Refreshing(1.0, 4, 0.01)),
    "honouring": Manners(retry_behaviour=Honouring()),
    "stopping midway": Manners(retry_behaviour=Sdk(), stop_share=0.6, stops_reading=exponential(0.5)),
}


@pytest.mark.parametrize("names_sessions", [True, False])
def test_a_session_is_known_by_its_name_or_by_the_prompts_that_its_turns_go_on_from(
    names_sessions: bool,
) -> None:
    turns = [
        Job(10.0 * turn, 1_500 + 700 * turn, 50, prefix_ids=tuple(range(10)), session=1) for turn in range(4)
    ]
    stage = play(turns, MANNERS["patient"], names_sessions=names_sessions)

    assert stage.outcomes == {"good": 4}
    assert stage.governor.snapshot(stage.world.loop.now).live_sessions == 1


@pytest.mark.parametrize("manners", MANNERS.values(), ids=MANNERS.keys())
@pytest.mark.parametrize("ignores", [False, True], ids=["lets go", "ignores hang-ups"])
def test_whatever_users_do_nothing_is_lost_and_nothing_leaks(manners: Manners, ignores: bool) -> None:
    stage = play(crowd_of(300), manners, engine_manners=EngineManners(0.2, ignores_hangups=ignores))

    nothing_is_left(stage)
    assert stage.recorder.requests == 300


TROUBLES = {
    "loss": EngineTrouble("loss", "engine-00", 2.0, 3.0),
    "stall": EngineTrouble("stall", "engine-00", 2.0, 3.0),
    "drift": EngineTrouble("drift", "engine-00", 2.0, 3.0, 3.0),
    "refusals": EngineTrouble("refusals", "engine-00", 2.0, 3.0, 0.5),
}


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES.keys())
def test_whatever_engines_do_nothing_is_lost_and_nothing_leaks(trouble: EngineTrouble) -> None:
    stage = play(crowd_of(300), Manners(constant(1.5), Sdk()), engines=2, troubles=(trouble,))

    nothing_is_left(stage)
    assert stage.outcomes["good"] > 0


def test_a_lost_engine_costs_its_own_work_and_its_share_of_capacity() -> None:
    """Lost for two thirds of the run: with eight streams, a few seconds are less than the luck of who comes when."""
    calm = play(crowd_of(450), Manners(), engines=2)
    loss = play(
        crowd_of(450), Manners(), engines=2, troubles=(EngineTrouble("loss", "engine-00", 2.0, 10.0),)
    )

    assert calm.outcomes.get("engine_failed", 0) == 0
    assert 0 < loss.outcomes["engine_failed"] < 60
    assert loss.outcomes["good"] < calm.outcomes["good"]


def test_equal_seeds_give_equal_runs_to_the_last_bit() -> None:
    manners = Manners(exponential(1.0), Sdk(), stop_share=0.3, stops_reading=exponential(1.0))
    one, two = play(crowd_of(300), manners), play(crowd_of(300), manners)

    assert one.world.summary(one.recorder) == two.world.summary(two.recorder)


def test_sdk_users_who_are_refused_try_again_when_they_were_told_and_are_served() -> None:
    lane = LaneSettings("interactive", ttft_slo_s=60.0, deadline_s=60.0, max_queue=0)
    together = [Job(0.0, 500, 100) for _ in range(8)]
    stage = play(together, Manners(retry_behaviour=Honouring()), lane=lane)

    assert stage.outcomes == {"good": 8}
    assert stage.recorder.returns > 0
    assert stage.recorder.returns_kept / stage.recorder.returns > 0.5


def test_users_who_stop_reading_are_gone_and_not_answered() -> None:
    manners = Manners(stop_share=1.0, stops_reading=constant(0.05))
    stage = play([Job(0.0, 500, 1000)], manners)

    assert stage.outcomes == {"client_gone": 1}


def test_who_gets_no_stream_waits_for_the_whole_answer_and_may_lose_patience() -> None:
    whole = [Job(0.0, 500, 400, stream=False)]
    patient, impatient = play(whole, Manners()), play(whole, Manners(constant(1.0)))

    assert patient.outcomes == {"good": 1}
    assert impatient.outcomes == {"client_gone": 1}


def test_an_adaptive_limit_moves_until_answers_keep_the_slo() -> None:
    slo_s = 0.02
    lane = LaneSettings("interactive", ttft_slo_s=2.0, deadline_s=2.0, tpot_slo_s=slo_s)
    plain = uniform_fleet(PROFILE, 1, [lane])
    engines = tuple(
        replace(engine, limit=LimitSettings("slo_gradient", tpot_slo_s=slo_s, start=200))
        for engine in plain.settings.engines
    )
    fleet = SimulatedFleet(replace(plain.settings, engines=engines), plain.profiles)
    loop, governor, streams = Loop(), build_governor(fleet.settings, 0.0), Streams(1)
    world = World(governor, loop, recorder := Recorder(fleet.settings.lanes, from_s=20.0))
    fleet.populate(world, streams)
    world.start_watch()
    coming = jobs(steady(45.0, streams), LENGTHS["azure_conversation"], streams, until_s=50.0)
    OpenLoop(world, Crowd(world, Manners(), streams), coming)
    assert governor.snapshot(0.0).engines[0].limit == 200
    loop.run()

    assert governor.snapshot(loop.now).engines[0].limit <= 100
    assert world.summary(recorder).tpot_s.p50 < slo_s


def test_through_the_gate_the_quantile_that_the_lane_names_ends_just_below_the_slo() -> None:
    """Of p50, p95 and p99 TPOT that which is named, within five minutes from a cold start."""
    slo_s = 0.03

    def tpots(share: float) -> Times:
        lane = LaneSettings("interactive", ttft_slo_s=5.0, deadline_s=5.0, tpot_slo_s=slo_s, tpot_share=share)
        plain = uniform_fleet(PROFILE, 1, [lane], max_inflight=256)
        limit = LimitSettings("slo_gradient", tpot_slo_s=slo_s, tpot_share=share)
        engines = tuple(replace(engine, limit=limit) for engine in plain.settings.engines)
        fleet = SimulatedFleet(replace(plain.settings, engines=engines), plain.profiles)
        loop, governor, streams = Loop(), build_governor(fleet.settings, 0.0), Streams(1)
        world = World(governor, loop, recorder := Recorder(fleet.settings.lanes, from_s=60.0))
        fleet.populate(world, streams)
        world.start_watch()
        coming = jobs(steady(40.0, streams), LENGTHS["azure_conversation"], streams, until_s=300.0)
        OpenLoop(world, Crowd(world, Manners(), streams), coming)
        loop.run()
        return world.summary(recorder).tpot_s

    half, most, nearly_all = tpots(0.5), tpots(0.95), tpots(0.99)
    assert [half.p50, most.p95, nearly_all.p99] == pytest.approx([0.97 * slo_s] * 3, rel=0.06)
    assert half.p99 > 1.2 * slo_s
    assert nearly_all.p50 < 0.75 * slo_s


def test_no_gate_sends_everything_to_the_engines_at_once() -> None:
    fleet = uniform_fleet(PROFILE, 2, [LANE], max_inflight=4)
    core = POLICIES["no gate"](fleet.settings)
    world = World(core, loop := Loop(), recorder := Recorder(fleet.settings.lanes))
    fleet.populate(world, Streams(1))
    OpenLoop(world, Crowd(world, Manners(), Streams(1)), iter([Job(0.0, 100, 10) for _ in range(40)]))
    loop.run(0.0)
    present = [sum(station.read()[:2]) for station in world.stations.values()]
    loop.run()

    assert present == [20, 20]
    assert not recorder.yields


def test_where_nothing_is_queued_no_batch_is_waited_for() -> None:
    """Before an idle engine `cap and yield` refused each request of a lane with a `window`, for ever."""
    fleet = uniform_fleet(PROFILE, 1, [replace(LANE, window_s=0.5)])
    core = POLICIES["cap and yield"](fleet.settings)
    world = World(core, loop := Loop(), recorder := Recorder(fleet.settings.lanes))
    fleet.populate(world, Streams(1))
    OpenLoop(world, Crowd(world, Manners(), Streams(1)), iter([Job(0.0, 100, 10)]))
    loop.run()

    assert recorder.outcomes == {"good": 1}


@pytest.mark.parametrize("kind", ["loss", "refusals"])
@pytest.mark.parametrize("policy", POLICIES)
def test_under_every_policy_a_run_ends_whose_engine_fails_what_it_has(
    policy: str, kind: Literal["loss", "refusals"]
) -> None:
    """Without a gate a failed answer was never over, so the default comparison of a lost engine stood still for good."""
    fleet = uniform_fleet(PROFILE, 2, [LANE], max_inflight=4)
    world = World(
        POLICIES[policy](fleet.settings), loop := Loop(), recorder := Recorder(fleet.settings.lanes)
    )
    fleet.populate(world, Streams(1), troubles=[EngineTrouble(kind, "engine-00", 2.0, 3.0)])
    world.start_watch()
    OpenLoop(world, Crowd(world, Manners(), Streams(1)), iter(crowd_of(200)))
    loop.run(600.0)

    assert world.is_over()
    assert sum(recorder.outcomes.values()) == recorder.requests == 200
    assert recorder.outcomes["engine_failed"] > 0


class Promising(OpenDoor):
    """Tells the first attempt to come back, and lets the second wait for ever."""

    def handle(self, event: Event, now: float) -> tuple[Decision, ...]:
        if not isinstance(event, Arrived):
            return ()
        if event.attempt == 1:
            return (Yield(1, Reason.SATURATED, 2.0, True),)
        return (Queue(event.attempt, 1, 0.5),)


def test_a_client_that_leaves_after_a_wait_at_its_hinted_return_was_promised_in_vain() -> None:
    """It was no return at all, so that only the kept ones of impatient users were counted."""
    fleet = uniform_fleet(PROFILE, 1, [LANE])
    world = World(Promising(fleet.settings), loop := Loop(), recorder := Recorder(fleet.settings.lanes))
    fleet.populate(world, Streams(1))
    manners = Manners(constant(3.0), Sdk(1))
    OpenLoop(world, Crowd(world, manners, Streams(1)), iter([Job(0.0, 100, 10)]))
    loop.run()

    assert recorder.outcomes == {"client_gone": 1}
    assert (recorder.returns, recorder.returns_kept) == (1, 0)


class Cutting(OpenDoor):
    """Admits everything cut to five tokens."""

    def handle(self, event: Event, now: float) -> tuple[Decision, ...]:
        cut = Reshaped(max_tokens=5)
        return tuple(
            each._replace(reshaped=cut) if isinstance(each, Admit) else each
            for each in super().handle(event, now)
        )


def test_an_answer_is_as_long_as_it_was_admitted_for() -> None:
    """Of a lane that cuts answers (`clip`) the engine made all that the client had asked for."""
    fleet = uniform_fleet(PROFILE, 1, [LANE])
    world = World(Cutting(fleet.settings), loop := Loop(), recorder := Recorder(fleet.settings.lanes))
    fleet.populate(world, Streams(1))
    OpenLoop(world, Crowd(world, Manners(), Streams(1)), iter([Job(0.0, 100, 400), Job(0.0, 100, 3)]))
    loop.run()

    assert (world.totals().output_tokens, recorder.good_tokens) == (8, 8)

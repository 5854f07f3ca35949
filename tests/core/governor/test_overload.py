"""Whole lives under load, seeded: the predicted wait bounds the queue, cold or warm, and recovers from a stall."""

from random import Random
from statistics import fmean

import pytest

from core.world import OUTPUT_TOKENS, Client, World, governor, steady_prior
from millgate.core.decisions import Queue
from millgate.core.settings import EngineSettings, LaneSettings
from millgate.core.words import Outcome, Reason

DEADLINE_S = 10.0


def _crowd(
    load: float,
    *,
    streams: int = 10,
    mean_s: float = 2.0,
    believed_s: float | None = None,
    seconds: float = 200.0,
    stall: tuple[float, float] = (0.0, 0.0),
    kv_tokens: int | None = None,
    seed: int = 1,
) -> tuple[World, list[Client]]:
    """Run Poisson arrivals with exponential answers at `load` x capacity; with a KV limit, no limit on streams."""
    dice = Random(seed)
    engine = EngineSettings(
        "engine",
        streams if kv_tokens is None else 256,
        kv_tokens=kv_tokens,
        prior=steady_prior(believed_s or mean_s),
    )
    lane = LaneSettings("lane", ttft_slo_s=DEADLINE_S, deadline_s=DEADLINE_S)
    world = World(governor(lane, engines=(engine,)), stall)
    clients: list[Client] = []
    time = 0.0
    while time < seconds:
        time += dice.expovariate(load * streams / mean_s)
        service_s = max(0.01, dice.expovariate(1.0 / mean_s))
        client = Client(len(clients), service_s, body=len(clients), ttft_s=service_s / 20, returns=False)
        clients.append(client)
        world.come(client, time)
    world.run(seconds)
    return world, clients


def _late_admissions(clients: list[Client]) -> list[Client]:
    return [each for each in clients if (each.admitted_at or 0.0) > each.came_at + DEADLINE_S]


@pytest.mark.parametrize(("load", "belief"), [(2.0, 0.3), (2.0, 1.0), (2.0, 3.0), (10.0, 1.0)])
def test_beyond_capacity_goodput_is_capacity_whatever_was_believed_at_first(
    load: float, belief: float
) -> None:
    world, clients = _crowd(load, believed_s=2.0 * belief)

    assert world.outcomes[Outcome.GOOD] >= 0.95 * 200.0 * 10 / 2.0
    assert world.outcomes[Outcome.LATE] <= 0.02 * world.outcomes[Outcome.GOOD]
    # What was queued in vain was too much hope; it is refused in time, and it is a small part.
    assert world.outcomes[Outcome.YIELDED] <= 0.1 * world.queued
    assert _late_admissions(clients) == []
    assert world.most_running == 10


def test_below_capacity_nobody_is_refused() -> None:
    world, clients = _crowd(0.8)

    assert not any(client.yields for client in clients)
    assert world.outcomes[Outcome.GOOD] == sum(world.outcomes.values())


def test_a_gate_that_is_full_in_kv_tokens_foresees_waits_within_a_factor_of_two() -> None:
    """The limit on streams (256) is never reached; ten answers of 200 tokens fill the KV meter."""
    world, clients = _crowd(1.5, kv_tokens=10 * 2 * OUTPUT_TOKENS)
    waits = [client.admitted_at - client.came_at for client in clients if client.admitted_at is not None]
    snapshot = world.gate.snapshot(world.now)

    assert world.most_running == 10
    assert snapshot.engines[0].drain_per_s == pytest.approx(10 / 2.0, rel=0.25)
    assert snapshot.lanes[0].expected_wait_s == pytest.approx(fmean(waits[len(waits) // 2 :]), rel=1.0)
    assert world.outcomes[Outcome.GOOD] >= 0.95 * 200.0 * 10 / 2.0
    assert _late_admissions(clients) == []


def test_expected_waits_of_the_queued_are_right_on_average() -> None:
    waits: dict[int, float] = {}

    class Listening(World):
        def _do(self, decision: object) -> None:
            if isinstance(decision, Queue):
                waits[decision.attempt] = decision.expected_wait_s
            super()._do(decision)  # type: ignore[arg-type]

    dice, lane = Random(2), LaneSettings("lane", ttft_slo_s=60.0, deadline_s=60.0)
    world = Listening(governor(lane, engines=(EngineSettings("engine", 10, prior=steady_prior(2.0)),)))
    for name in range(400):
        client = Client(name, dice.expovariate(0.5), ttft_s=0.0, body=name)
        world.come(client, name * 0.1)
    world.run()
    real = {n: (world.clients[n].admitted_at or 0.0) - world.clients[n].came_at for n in waits}

    assert len(waits) > 100
    assert fmean(waits.values()) == pytest.approx(fmean(real.values()), rel=0.2)


@pytest.mark.parametrize("load", [0.8, 2.0])
def test_a_stall_of_thirty_seconds_leaves_no_mark(load: float) -> None:
    """Nothing is sent to the engine for those who gave up meanwhile, and ten seconds later all is as before."""
    world, clients = _crowd(load, seconds=240.0, stall=(60.0, 90.0))
    after = [each for each in clients if 100.0 <= each.came_at < 220.0]
    good = [each for each in after if each.ended is not None and each.ended.outcome is Outcome.GOOD]

    assert _late_admissions(clients) == []
    assert len(good) >= 0.93 * min(len(after), 120.0 * 10 / 2.0)
    during = [each for each in clients if 75.0 <= each.came_at < 85.0]
    refused = {each.reason for client in during for each in client.yields}
    assert refused <= {Reason.TOO_LATE, Reason.EXPIRED, Reason.QUEUE_FULL}
    assert world.most_running == 10

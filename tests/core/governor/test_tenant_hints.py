"""A tenant's own streams: clients that its cap refuses are told successive times, and held for a stream when they are back."""

from typing import Any

import pytest

from core.governor.asking import ask, gate_of
from core.world import Client, World, steady_prior
from millgate.core.decisions import Admit, Decision, Ended, Queue, Yield
from millgate.core.events import ClientGone, Finished, Released, Tick
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, TenantSettings
from millgate.core.words import Reason

SERVICE_S, CAP = 2.0, 8


def _gate(cap: int = CAP, **lane: Any) -> Governor:
    return gate_of(
        LaneSettings("lane", ttft_slo_s=60.0, deadline_s=60.0, **lane),
        engine=EngineSettings("engine", 50, prior=steady_prior(SERVICE_S)),
        tenants=(TenantSettings("ann", max_inflight=cap),),
        retry_budget=False,
    )


def _due(gate: Governor) -> float:
    """Fill the one stream of ann's at 0, and have client 2 refused; return when it is to be back."""
    assert isinstance(ask(gate, 1, tenant="ann"), Admit)
    refused = _back(gate, 2, 0.0)
    assert isinstance(refused, Yield)
    assert refused.reason is Reason.TENANT_LIMIT
    return refused.retry_after_s


def _back(gate: Governor, attempt: int, now: float) -> Any:
    return ask(gate, attempt, now, tenant="ann", fingerprint=lambda: 2)


def _ends(gate: Governor, attempt: int, now: float) -> list[Decision]:
    gate.handle(Finished(attempt, 100, 100), now)
    return list(gate.handle(Released(attempt), now))


@pytest.mark.parametrize("calls", [20, 60])
def test_a_team_that_calls_beyond_its_cap_is_served_within_two_retries(calls: int) -> None:
    """All were told a quarter of a second, and twelve of twenty calls failed with the engine nearly idle."""
    world = World(_gate())
    clients = [Client(number, SERVICE_S, tenant="ann", body=number) for number in range(calls)]
    for client in clients:
        world.come(client, 0.001 * client.name)
    world.run()

    assert len(world.served) == calls
    assert sum(len(client.yields) > 2 for client in clients) <= calls // 20
    assert world.now <= SERVICE_S * (calls / CAP + 2)


def test_a_line_is_no_longer_than_what_is_in_time_and_is_forgotten_when_its_time_is_over() -> None:
    """A longer one has every client of the tenant wait for its whole deadline, and come too late."""
    gate = _gate()
    for number in range(CAP):
        assert isinstance(ask(gate, number, 0.0, tenant="ann"), Admit)
    refused = [ask(gate, 100 + number, 0.0, tenant="ann") for number in range(1000)]
    assert {each.reason for each in refused} == {Reason.TENANT_LIMIT}
    asked_back = [each.retry_after_s for each in refused if each.retry]
    assert max(asked_back) == pytest.approx(60.0 / 1.2, rel=0.02), (
        "a fifth of a hint may pass until it is kept"
    )
    assert len(asked_back) == pytest.approx(max(asked_back) * CAP / SERVICE_S, rel=0.1)

    last = ask(gate, 2000, 100.0, tenant="ann")
    assert isinstance(last, Yield)
    assert last.retry_after_s == pytest.approx(SERVICE_S / CAP, rel=0.5)
    for number in range(CAP):
        gate.handle(Finished(number, 100, 100), 101.0)
        gate.handle(Released(number), 101.0)
    assert isinstance(ask(gate, 2001, 101.0, tenant="ann"), Admit)


def test_a_client_that_is_due_is_held_until_a_stream_of_its_tenant_ends() -> None:
    """Newcomers took each stream that ended, and clients that were back when told were refused again: up to a dozen times."""
    gate = _gate(cap=1)
    hint_s = _due(gate)
    held = _back(gate, 3, hint_s)
    assert isinstance(held, Queue)
    assert isinstance(ask(gate, 4, hint_s + 0.1, tenant="ann"), Yield), "a newcomer of its tenant"
    assert isinstance(ask(gate, 5, hint_s + 0.1, tenant="bob"), Admit), "another tenant does not wait for it"
    admitted = _ends(gate, 1, hint_s + 0.2)
    assert [each.attempt for each in admitted if isinstance(each, Admit)] == [3]
    (lane,) = gate.snapshot(hint_s + 0.2).lanes
    assert (lane.hints_kept, lane.hints_broken) == (1, 0)


def test_one_that_was_held_in_vain_keeps_its_turn() -> None:
    gate = _gate(cap=1)
    hint_s = _due(gate)
    others = [ask(gate, 10 + number, 0.1, tenant="ann") for number in range(4)]
    assert isinstance(_back(gate, 3, hint_s), Queue)
    gate.handle(Tick(), hint_s + 0.9)
    refused, ended = gate.handle(Tick(), hint_s + 1.1)
    assert isinstance(refused, Yield)
    assert isinstance(ended, Ended)
    assert (refused.reason, refused.value, refused.bound, refused.retry) == (Reason.TENANT_LIMIT, 1, 1, True)
    assert refused.retry_after_s < min(each.retry_after_s for each in others)


def test_one_that_is_held_and_leaves_is_not_waited_for() -> None:
    gate = _gate(cap=1)
    hint_s = _due(gate)
    assert isinstance(_back(gate, 3, hint_s), Queue)
    gate.handle(ClientGone(3), hint_s + 0.1)
    _ends(gate, 1, hint_s + 0.2)
    assert isinstance(ask(gate, 6, hint_s + 0.3, tenant="ann"), Admit)


@pytest.mark.parametrize("lane", [{"hold_due_s": 0.0}, {"max_overtakes": 3, "order": "short_first"}])
def test_a_lane_that_holds_none_or_lets_none_pass_refuses_one_that_is_due(lane: dict[str, Any]) -> None:
    gate = _gate(cap=1, **lane)
    hint_s = _due(gate)
    assert isinstance(_back(gate, 3, hint_s), Yield)
    assert isinstance(ask(gate, 5, hint_s + 0.1, tenant="bob"), Admit)


def test_with_newcomers_all_the_time_those_who_are_back_when_told_are_let_in() -> None:
    """Four requests a second come for two streams of 2 s: four times as many as the tenant may have."""
    world = World(_gate(cap=2))
    clients = [Client(number, SERVICE_S, tenant="ann", body=number) for number in range(80)]
    for client in clients:
        world.come(client, client.name / 4.0)
    world.run(60.0)
    served = [each for each in clients if each.admitted_at is not None]
    assert len(served) >= 55, "two streams for a minute"
    assert sum(len(each.yields) > 1 for each in served) <= len(served) // 10


def test_a_request_that_is_held_for_its_tenants_stream_takes_no_turn_from_another_lane() -> None:
    """Streams stood idle for as long as it was held, and newcomers overtook those that waited."""
    gate = gate_of(
        LaneSettings("lane", deadline_s=60.0),
        LaneSettings("other", deadline_s=60.0),
        tenants=(TenantSettings("ann", max_inflight=1),),
        retry_budget=False,
    )
    due_at = _due(gate)
    for number in (3, 4, 5):
        assert isinstance(ask(gate, number, lane="other"), Admit)
    assert isinstance(_back(gate, 6, due_at), Queue)
    assert isinstance(ask(gate, 7, due_at, lane="other"), Queue)

    assert [each.attempt for each in _ends(gate, 3, due_at + 0.1)] == [7]

"""A tenant's own streams: clients that its cap refuses together are told successive times, so that an SDK's two retries do."""

import pytest

from core.governor.asking import ask, gate_of
from core.world import Client, World, steady_prior
from millgate.core.decisions import Admit, Yield
from millgate.core.events import Finished, Released
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, TenantSettings
from millgate.core.words import Reason

SERVICE_S, CAP = 2.0, 8


def _gate() -> Governor:
    return gate_of(
        LaneSettings("lane", ttft_slo_s=60.0, deadline_s=60.0),
        engine=EngineSettings("engine", 50, prior=steady_prior(SERVICE_S)),
        tenants=(TenantSettings("ann", max_inflight=CAP),),
        retry_budget=False,
    )


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


def test_a_line_beyond_the_longest_hint_is_no_line_and_is_forgotten_when_its_time_is_over() -> None:
    gate = _gate()
    for number in range(CAP):
        assert isinstance(ask(gate, number, 0.0, tenant="ann"), Admit)
    refused = [ask(gate, 100 + number, 0.0, tenant="ann") for number in range(1000)]
    assert {each.reason for each in refused} == {Reason.TENANT_LIMIT}
    assert all(each.retry for each in refused)
    assert max(each.retry_after_s for each in refused) == 60.0

    last = ask(gate, 2000, 100.0, tenant="ann")
    assert isinstance(last, Yield)
    assert last.retry_after_s == pytest.approx(SERVICE_S / CAP, rel=0.5)
    for number in range(CAP):
        gate.handle(Finished(number, 100, 100), 101.0)
        gate.handle(Released(number), 101.0)
    assert isinstance(ask(gate, 2001, 101.0, tenant="ann"), Admit)

"""Replicas with real cores, renewers and ledger, in virtual time: what tenants may have and how many retries pass, over all of them."""

import asyncio
from math import inf
from random import Random
from typing import Any

import pytest

from core.governor.asking import ask
from core.world import steady_prior
from millgate.cluster.contract import StoreUnavailableError
from millgate.cluster.leases import FailurePolicy, Leased, LeaseRenewer, LeaseSettings, Shared
from millgate.cluster.ledger import MemoryStore
from millgate.core.decisions import Admit, Queue, Yield
from millgate.core.events import Finished, FirstToken, LeaseGranted, Released
from millgate.core.governor.tenant_streams import MOST_LEASED
from millgate.core.settings import (
    EngineSettings,
    LaneSettings,
    QuotaLimit,
    QuotaRule,
    Settings,
    TenantSettings,
)
from millgate.core.words import QuotaKind, Reason
from millgate.gateway.cluster import holdings_of, lease_of, lines_of
from millgate.wiring.governor import build_governor

_RENEWAL_S = 0.25


def _settings(tenants: tuple[TenantSettings, ...], quotas: tuple[QuotaRule, ...] = ()) -> Settings:
    """One engine for the usual model, and one for the model `busy`."""
    lane, prior = LaneSettings("lane", ttft_slo_s=3_600.0, deadline_s=3_600.0), steady_prior(2.0)
    busy = EngineSettings("busy", 64, prior=prior, models=("busy",))
    return Settings(
        (lane,),
        (EngineSettings("engine", 64, prior=prior, models=("usual",)), busy),
        tenants=tenants,
        quotas=quotas,
    )


class _Replica:
    """One core with its renewer; `running` are its attempts by the time of their admission."""

    def __init__(self, world: "_World", name: str, settings: LeaseSettings) -> None:
        self.world, self.core = world, build_governor(_settings(world.tenants, world.quotas), 0.0)
        self.running: dict[int, float] = {}
        self.core.handle(LeaseGranted(inf), 0.0)
        self.renewer = LeaseRenewer(
            world.store, name, self._collect, self._apply, lambda _: None, lambda: world.now, settings
        )

    def _collect(self) -> Shared:
        use = self.core.shared_use(self.world.now)
        return Shared(holdings_of(use), lines_of(use))

    def _apply(self, leased: Leased) -> None:
        lease = lease_of(leased.shares, leased.replicas, leased.ends_at, leased.lines)
        self._note(self.core.handle(lease, self.world.now))

    def ask(self, **fields: Any) -> Any:
        self.world.asked += 1
        decided = ask(self.core, self.world.asked, self.world.now, **{"model": "usual", **fields})
        self._note((decided,))
        return decided

    def _note(self, decisions: tuple[Any, ...]) -> None:
        self.running |= {each.attempt: self.world.now for each in decisions if isinstance(each, Admit)}

    def end_after(self, seconds: float) -> None:
        for attempt in [each for each, at in self.running.items() if self.world.now >= at + seconds]:
            del self.running[attempt]
            for event in (FirstToken(attempt), Finished(attempt, 100, 100), Released(attempt)):
                self._note(self.core.handle(event, self.world.now))


class _World:
    """So many replicas that share these tenants' caps; each renews when its renewer says so, and not while it is stopped."""

    def __init__(
        self,
        replicas: int,
        *tenants: TenantSettings,
        settings: LeaseSettings | None = None,
        quotas: tuple[QuotaRule, ...] = (),
    ) -> None:
        self.now, self.asked, self.tenants, self.quotas = 0.0, 0, tenants, quotas
        self.settings = settings or LeaseSettings()
        self.store = MemoryStore(lambda: self.now + 50.0)
        self.replicas = [_Replica(self, f"replica-{number}", self.settings) for number in range(replicas)]
        self._renews_at = [number / 100.0 for number in range(replicas)]

    def passes(self, seconds: float, *stopped: _Replica) -> None:
        until = self.now + seconds
        while self.now < until - 1e-9:
            self.now += 0.01
            for number, replica in enumerate(self.replicas):
                if self.now >= self._renews_at[number] and replica not in stopped:
                    asyncio.run(replica.renewer.renew())
                    self._renews_at[number] = self.now + replica.renewer.pause_s

    def running(self) -> int:
        return sum([len(each.running) for each in self.replicas], 0)


def test_a_tenant_has_no_more_streams_over_four_replicas_than_before_one() -> None:
    world = _World(4, TenantSettings("acme", max_inflight=6))
    world.passes(1.0)
    for replica in world.replicas:
        for _ in range(6):
            replica.ask(tenant="acme")
    assert world.running() == 6
    world.passes(1.0)
    refused = [replica.ask(tenant="acme") for replica in world.replicas]
    assert [(each.value, each.bound) for each in refused] == [(6.0, 6.0)] * 4, "what it runs everywhere"


@pytest.mark.parametrize(
    "day", [QuotaLimit(QuotaKind.RPD, 40.0), QuotaLimit(QuotaKind.TPD, 40.0 * 200.0)], ids=["rpd", "tpd"]
)
def test_a_client_whose_connection_stays_with_one_replica_has_the_whole_day(day: QuotaLimit) -> None:
    """It had a quarter of it: the rest stayed at the others, and it was told that nothing is left, for good."""
    world = _World(4, quotas=(QuotaRule("day", day),))
    world.passes(2.0)
    told, served = list[Yield](), 0
    for replica in world.replicas:
        while isinstance(decided := replica.ask(), Admit):
            served += 1
            replica.end_after(0.0)
            world.passes(0.5)
        told.append(decided)
    assert {each.reason for each in told} == {Reason.QUOTA}
    assert [each.retry for each in told] == [True, True, True, False], "while another one has it"
    assert {each.retry_after_s for each in told[:3]} == {1.0}
    assert 36 <= served <= 40


def test_a_share_goes_where_the_tenant_asks() -> None:
    world = _World(4, TenantSettings("acme", max_inflight=6))
    world.passes(1.0)
    busy, most = world.replicas[2], 0
    for _ in range(10):
        refused = [each for each in [busy.ask(tenant="acme") for _ in range(6)] if isinstance(each, Yield)]
        assert {each.reason for each in refused} <= {Reason.TENANT_LIMIT}
        most = max(most, len(busy.running))
        world.passes(0.2)
    assert most == 6


def test_a_client_of_an_idle_tenant_comes_in_at_any_replica_when_it_was_told_though_the_cap_is_smaller() -> (
    None
):
    world = _World(4, TenantSettings("acme", max_inflight=1))
    world.passes(1.0)
    for replica in world.replicas:
        first = replica.ask(tenant="acme", fingerprint=lambda: 7)
        if isinstance(first, Yield):
            assert first.retry_after_s >= 0.5
            world.passes(first.retry_after_s)
            assert isinstance(replica.ask(tenant="acme", fingerprint=lambda: 7), Admit)
        replica.end_after(0.0)
        world.passes(0.5)


@pytest.mark.parametrize("cap", [1, 2, 3, 7])
def test_the_cap_holds_at_every_instant_and_every_replica_has_its_turn(cap: int) -> None:
    world, dice = _World(4, TenantSettings("acme", max_inflight=cap)), Random(cap)
    world.passes(1.0)
    served = [0] * 4
    for _ in range(1_200):
        stopped = world.replicas[3] if 30.0 < world.now < 34.0 else None
        for number, replica in enumerate(world.replicas):
            replica.end_after(0.5)
            if dice.random() < 0.5:
                served[number] += isinstance(
                    replica.ask(tenant="acme", answers=dice.choice((1, 1, 2))), Admit
                )
        assert sum([each.core.shared_use(world.now).numbers[1].used for each in world.replicas], 0) <= max(
            cap, 2
        )
        assert world.running() <= cap
        world.passes(0.05, *([stopped] if stopped else []))
    assert min(served) > 5


def test_what_a_dead_replica_ran_of_a_tenant_is_free_when_an_answer_cannot_last_longer() -> None:
    world = _World(2, TenantSettings("acme", max_inflight=4))
    world.passes(1.0)
    dead, other = world.replicas
    for _ in range(2):
        assert isinstance(dead.ask(tenant="acme"), Admit)
    world.replicas.remove(dead)
    for _ in range(80):
        world.passes(0.25)
        other.ask(tenant="acme")
        if world.now < 3.0:
            assert len(other.running) <= 2
    assert len(other.running) == 4


def test_what_runs_on_an_engine_that_one_replica_knows_no_more_is_no_other_replicas_to_use() -> None:
    """Replicas take a reload, or the answer of a name server, one after the other; the engine is the same for all of them."""
    world = _World(2)
    world.passes(1.0)
    early, late = world.replicas
    for _ in range(20):
        early.ask()
    world.passes(1.0)
    before = len(early.running)
    assert before == 20
    elsewhere = EngineSettings("other", 64, prior=steady_prior(2.0))
    early.core.reconfigure(Settings((LaneSettings("lane", deadline_s=60.0),), (elsewhere,)), world.now)
    for _ in range(80):
        late.ask()
        world.passes(0.05)
    assert len(late.running) == 64 - before
    early.end_after(0.0)
    world.passes(1.0)
    assert len(late.running) == 64


def test_of_many_tenants_a_replica_leases_those_that_ask() -> None:
    tenants = [TenantSettings(f"tenant {number}", max_inflight=2) for number in range(MOST_LEASED)]
    world = _World(2, *tenants)
    world.passes(1.0)
    first, _ = world.replicas
    last = first.ask(tenant=tenants[-1].name)
    assert isinstance(last, Yield)
    world.passes(last.retry_after_s)
    assert isinstance(first.ask(tenant=tenants[-1].name), Admit)
    use = [each for each in first.core.shared_use(world.now).numbers if each.kind == "tenant"]
    assert len(use) == MOST_LEASED / 2
    assert use[0][1:4] == ((tenants[-1].name,), 2, 1)


@pytest.mark.parametrize(
    ("policy", "admitted"), [(FailurePolicy.SHARE, 1), (FailurePolicy.CLOSED, 0), (FailurePolicy.OPEN, 4)]
)
def test_without_the_store_the_policy_says_how_many_streams_a_tenant_has(
    policy: FailurePolicy, admitted: int
) -> None:
    world = _World(4, TenantSettings("acme", max_inflight=4), settings=LeaseSettings(policy=policy))
    world.passes(1.0)
    for replica in world.replicas:
        replica.renewer._store = _Gone()  # type: ignore[assignment]
    world.passes(2.5)
    decided = [world.replicas[0].ask(tenant="acme") for _ in range(6)]
    assert sum(isinstance(each, Admit) for each in decided) == admitted


class _Gone:
    async def renew(self, _renewal: Any) -> Any:
        raise StoreUnavailableError("gone")

    async def leave(self, _replica: str, _epoch: int) -> None:
        raise StoreUnavailableError("gone")


def _retry(replica: _Replica) -> bool:
    """Have a retry come for the full engine; return whether the budget lets it wait there."""
    return isinstance(replica.ask(retry_count=1, model="busy"), Queue)


def _with_a_full_engine(replicas: int) -> _World:
    world = _World(replicas)
    # In the ten seconds after their first lease they charge no retry that they do not know.
    world.passes(11.0)
    for replica in world.replicas:
        for _ in range(64):
            replica.ask(model="busy")
        replica.running.clear()
    world.passes(1.0)
    return world


def test_four_replicas_let_as_many_retries_pass_as_one() -> None:
    def passed(replicas: int) -> int:
        world, count = _with_a_full_engine(replicas), 0
        for turn in range(400):
            world.replicas[turn % replicas].ask()
            count += sum([_retry(replica) for replica in world.replicas], 0)
            for replica in world.replicas:
                replica.end_after(0.1)
            world.passes(0.05)
        return count

    alone = passed(1)
    assert alone > 50
    assert 0.7 * alone <= passed(4) <= 1.1 * alone


def test_retries_pass_where_they_come_although_others_earn_them() -> None:
    world, count = _with_a_full_engine(4), 0
    for _ in range(200):
        world.replicas[0].ask()
        count += _retry(world.replicas[1])
        for replica in world.replicas:
            replica.end_after(0.1)
        world.passes(0.05)
    assert count >= 0.2 * 200 * 0.7

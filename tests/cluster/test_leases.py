"""The renewer by arithmetic: what a replica may use while the store answers, does not, and does again."""

import asyncio
from collections.abc import Coroutine

import pytest

from millgate.cluster.contract import (
    FencedError,
    Granted,
    Holding,
    Kind,
    LeasedShare,
    Renewal,
    StoreUnavailableError,
    share_key,
)
from millgate.cluster.leases import (
    FailurePolicy,
    Leased,
    LeaseRenewer,
    LeaseSettings,
    LeaseStatus,
    RenewalState,
    Shared,
)
from millgate.cluster.ledger import MemoryStore

STREAMS, RATE = share_key(Kind.STREAMS, "gpu"), share_key(Kind.RATE, "acme", "rpm")
DEFAULT = LeaseSettings()


class Stand:
    """A renewer over a store in memory that can be away, slow, or forgetful, and what it told the governor."""

    def __init__(self, settings: LeaseSettings = DEFAULT) -> None:
        self.now = 50.0
        self.memory = MemoryStore(lambda: self.now)
        self.problem: Exception | None = None
        self.late_s = 0.0
        self.sent: list[Renewal] = []
        self.applied: list[Leased] = []
        self.changes: list[LeaseStatus] = []
        self.used, self.wanted = 0.0, 20.0
        self.more: tuple[Holding, ...] = ()
        self.most, self.enough = 3, asyncio.Event()
        self.renewer = LeaseRenewer(
            self, "one", self._collect, self.applied.append, self.changes.append, lambda: self.now, settings
        )
        self.other = LeaseRenewer(
            self.memory, "two", self._collect, lambda _: None, lambda _: None, lambda: self.now, settings
        )

    def _collect(self) -> Shared:
        streams = Holding(STREAMS, 9.0, self.used, self.wanted, 1.0, 60.0)
        return Shared((streams, Holding(RATE, 10.0, 0.0, 5.0 * self.wanted), *self.more))

    async def renew(self, renewal: Renewal) -> Granted:
        self.sent.append(renewal)
        if len(self.sent) == self.most:
            self.enough.set()
        if self.problem is not None:
            self.now += self.late_s
            raise self.problem
        granted = await self.memory.renew(renewal)
        self.now += self.late_s
        return granted

    async def leave(self, replica: str, epoch: int) -> None:
        await self.memory.leave(replica, epoch)

    async def close(self) -> None:
        """Nothing to end."""

    def lives(self, seconds: float = 0.0) -> None:
        """Renew once a quarter of a second, both replicas, beginning now."""
        for _ in range(int(seconds * 4) + 1):
            _run(self.renewer.renew())
            _run(self.other.renew())
            self.now += 0.25

    @property
    def shares(self) -> dict[str, float]:
        return {share.key: share.amount for share in self.applied[-1].shares}

    @property
    def states(self) -> list[RenewalState]:
        return [each.state for each in self.changes]


def _run(work: Coroutine[object, object, None]) -> None:
    asyncio.run(work)


def test_a_lease_is_counted_from_before_its_renewal_was_sent() -> None:
    stand = Stand()
    stand.late_s = 0.1

    _run(stand.renewer.renew())

    assert stand.applied == [
        Leased(RenewalState.LEASED, (LeasedShare(STREAMS, 9.0), LeasedShare(RATE, 10.0)), 52.0, 1)
    ]


def test_the_next_renewal_names_the_answer_that_was_taken_over_and_what_is_held() -> None:
    stand = Stand()

    stand.lives(0.25)

    first, second = stand.sent
    assert (first.epoch, first.applied, first.holdings[0].held) == (0, 0, 0.0)
    assert (second.epoch, second.applied, second.holdings[0].held) == (1, 1, 9.0)


@pytest.mark.parametrize(
    ("policy", "streams", "rate"),
    [(FailurePolicy.SHARE, 5.0, 5.0), (FailurePolicy.CLOSED, 0.0, 0.0), (FailurePolicy.OPEN, 9.0, 10.0)],
)
def test_without_a_store_the_last_lease_holds_to_its_end_and_then_the_policy(
    policy: FailurePolicy, streams: float, rate: float
) -> None:
    stand = Stand(LeaseSettings(policy=policy))
    stand.lives(2.0)
    answers = len(stand.applied)
    stand.problem = StoreUnavailableError("gone")

    stand.lives(1.5)
    assert len(stand.applied) == answers
    assert stand.states == [RenewalState.LEASED, RenewalState.HOLDING]
    stand.lives(60.0)

    assert stand.shares == {STREAMS: streams, RATE: rate}
    assert stand.applied[-1].ends_at == float("inf")
    assert stand.states == [RenewalState.LEASED, RenewalState.HOLDING, RenewalState.DEGRADED]
    assert stand.renewer.status.reason == "gone"


def test_it_recovers_by_itself() -> None:
    stand = Stand()
    stand.lives(1.0)
    stand.problem = StoreUnavailableError("gone")
    stand.lives(10.0)
    stand.problem = None

    stand.lives(3.0)

    assert stand.states[2:] == [RenewalState.DEGRADED, RenewalState.JOINING, RenewalState.LEASED]
    assert stand.renewer.status.fenced == 1
    assert stand.shares[RATE] == pytest.approx(5.0)


def test_a_share_by_policy_never_grows() -> None:
    stand = Stand()
    stand.lives(1.0)
    _run(stand.other.leave())
    stand.used = 1.0
    stand.problem = StoreUnavailableError("gone")

    stand.lives(3.0)

    assert stand.shares[STREAMS] == 5.0


@pytest.mark.parametrize(("wanted", "streams"), [(2.0, 1.0), (0.0, 0.0)], ids=["it has", "others have"])
def test_without_a_store_a_tenant_of_two_streams_keeps_what_three_replicas_have_of_them(
    wanted: float, streams: float
) -> None:
    """Two divided by three was none at each of them: the tenant was refused for as long as the store was gone."""
    stand = Stand()
    tenant = share_key(Kind.TENANT, "acme")
    others = (Holding(tenant, 2.0, 2.0 - wanted, 2.0 - wanted, waits_s=1.0),)
    third = LeaseRenewer(
        stand.memory, "three", lambda: Shared(others), lambda _: None, lambda _: None, lambda: stand.now
    )
    for _ in range(8):
        stand.more = (Holding(tenant, 2.0, 0.0, wanted),)
        _run(stand.renewer.renew())
        stand.more = (Holding(tenant, 2.0, 0.0, 0.0),)
        _run(stand.other.renew())
        _run(third.renew())
        stand.now += 0.25
    stand.more = (Holding(tenant, 2.0, 0.0, wanted),)
    stand.problem = StoreUnavailableError("gone")

    stand.lives(3.0)

    assert stand.shares[tenant] == streams


def test_a_fenced_replica_stops_and_joins_at_once() -> None:
    stand = Stand()
    stand.lives(0.5)
    stand.problem = FencedError("ended")

    _run(stand.renewer.renew())

    assert stand.shares == {STREAMS: 0.0, RATE: 0.0}
    assert stand.sent[-1].epoch == 0
    assert stand.sent[-1].holdings[0].held == 0.0


@pytest.mark.parametrize(("replicas", "streams"), [(0, 0.0), (2, 4.0)])
def test_a_start_without_a_store_uses_an_even_share_of_the_replicas_that_are_configured(
    replicas: int, streams: float
) -> None:
    stand = Stand(LeaseSettings(replicas=replicas))
    stand.problem = StoreUnavailableError("gone")

    _run(stand.renewer.renew())

    assert stand.shares[STREAMS] == streams
    assert stand.states == [RenewalState.DEGRADED]


def test_an_answer_that_comes_after_its_lease_grants_nothing() -> None:
    stand = Stand(LeaseSettings(policy=FailurePolicy.CLOSED))
    stand.late_s = 2.5

    _run(stand.renewer.renew())

    assert stand.shares == {STREAMS: 0.0, RATE: 0.0}
    assert stand.renewer.status.state is RenewalState.DEGRADED


def test_a_replica_that_stood_still_asks_again_before_it_does_without_a_lease() -> None:
    stand = Stand()
    stand.lives(1.0)
    answers = len(stand.applied)
    stand.problem, stand.late_s = StoreUnavailableError("no answer in time"), 5.0

    _run(stand.renewer.renew())

    assert len(stand.applied) == answers
    assert stand.states == [RenewalState.LEASED]

    _run(stand.renewer.renew())
    assert stand.states == [RenewalState.LEASED, RenewalState.DEGRADED]


def test_the_policy_takes_over_at_the_end_of_the_lease_while_the_store_still_owes_an_answer() -> None:
    """With a Redis that hangs nothing was let in for up to half a second, whatever `when_store_is_gone` says."""

    class Hanging(MemoryStore):
        async def renew(self, renewal: Renewal) -> Granted:
            if renewal.applied == 0:
                return await super().renew(renewal)
            await asyncio.sleep(3.0)
            raise StoreUnavailableError("gone")

    async def hang() -> None:
        now = asyncio.get_running_loop().time
        began = now()
        renewer = LeaseRenewer(
            Hanging(now),
            "one",
            lambda: Shared((Holding(STREAMS, 9.0, 0.0, 9.0),)),
            lambda leased: told.append((leased.state, now() - began)),
            lambda _: None,
            now,
            LeaseSettings(lease_s=0.4, renewal_s=0.1),
        )
        renewals = asyncio.ensure_future(renewer.run())
        await asyncio.sleep(0.6)
        renewals.cancel()

    told: list[tuple[RenewalState, float]] = []
    _run(hang())

    assert [state for state, _ in told] == [RenewalState.LEASED, RenewalState.DEGRADED]
    assert told[1][1] == pytest.approx(0.4, abs=0.15)


def test_it_asks_sooner_while_a_share_falls_or_is_less_than_it_wants() -> None:
    stand = Stand()

    def lives(wanted: float) -> float:
        stand.wanted = wanted
        _run(stand.renewer.renew())
        return stand.renewer.pause_s

    assert lives(20.0) == pytest.approx(0.05)
    assert lives(1.0) == pytest.approx(0.25)
    _run(stand.other.renew())
    assert lives(1.0) == pytest.approx(0.05)
    assert lives(1.0) == pytest.approx(0.25)


def test_for_a_tenants_streams_it_asks_sooner_only_while_a_client_is_held() -> None:
    stand = Stand()
    stand.wanted = 1.0
    short = Holding(share_key(Kind.TENANT, "ann"), 4.0, 4.0, 6.0)
    _run(stand.renewer.renew())
    for waits_s, pause_s in ((0.0, 0.25), (0.5, 0.05)):
        stand.more = (short._replace(waits_s=waits_s),)
        _run(stand.renewer.renew())
        assert stand.renewer.pause_s == pytest.approx(pause_s)


def test_a_lost_renewal_is_asked_again_soon_and_a_store_that_is_gone_no_sooner_than_usual() -> None:
    stand = Stand()
    stand.lives(1.0)
    pauses = []

    stand.problem = StoreUnavailableError("lost")
    for _ in range(3):
        _run(stand.renewer.renew())
        pauses.append(stand.renewer.pause_s)

    assert pauses == [pytest.approx(0.05), 0.25, 0.25]


def test_leaving_gives_back_at_once() -> None:
    stand = Stand()
    stand.lives(1.0)

    _run(stand.renewer.leave())
    _run(stand.other.renew())

    assert stand.renewer.status.state is RenewalState.LEFT
    assert stand.other.status.replicas == 1


def test_a_lease_shorter_than_four_renewals_is_refused() -> None:
    with pytest.raises(ValueError, match="four pauses"):
        Stand(LeaseSettings(lease_s=0.9, renewal_s=0.25))


def test_run_renews_until_it_is_cancelled() -> None:
    stand = Stand(LeaseSettings(lease_s=0.04, renewal_s=0.01))

    async def live() -> None:
        task = asyncio.create_task(stand.renewer.run())
        await stand.enough.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(live())

    assert [renewal.applied for renewal in stand.sent[:3]] == [0, 1, 2]


def test_a_problem_that_no_store_should_have_ends_no_renewals_and_is_named_without_its_text() -> None:
    stand = Stand(LeaseSettings(lease_s=0.04, renewal_s=0.01))
    stand.problem, stand.late_s = ValueError("a secret"), 0.01
    stand.most = 8

    async def live() -> None:
        task = asyncio.create_task(stand.renewer.run())
        await stand.enough.wait()
        assert stand.renewer.status.reason == "the renewal failed: ValueError"
        stand.problem = None
        stand.enough.clear()
        stand.most = 10
        await stand.enough.wait()
        task.cancel()

    asyncio.run(live())

    assert stand.renewer.status.state is RenewalState.LEASED

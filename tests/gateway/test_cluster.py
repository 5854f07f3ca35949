"""A replica's lease: joined, renewed, lost, and what it admits by while the store is gone."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from math import inf
from typing import Literal, cast

import pytest

from gateway.stand import core_settings
from millgate.cluster.contract import Granted, LeasedShare, Renewal, StoreUnavailableError
from millgate.cluster.leases import RenewalState as State
from millgate.core.events import Arrived, EngineShare, Finished, LeaseGranted
from millgate.core.snapshot import SharedNumber, SharedUse
from millgate.gateway.cluster import Membership
from millgate.gateway.settings import ClusterSettings
from millgate.runtime.clock import MonotonicClock
from millgate.runtime.driver import Driver
from millgate.wiring.governor import build_governor

_SETTINGS = ClusterSettings("redis://nowhere", "test", "one", lease_s=0.4, renew_every_s=0.05, timeout_s=0.04)


_Gone = Literal["share", "closed", "open"]


class _Gate:
    def __init__(self) -> None:
        self.leases: list[LeaseGranted] = []
        self.before_step: object = None

    def shared_use(self) -> SharedUse:
        return SharedUse((SharedNumber("streams", ("engine",), 16, 2, 5, 1),), ())

    def post(self, *events: LeaseGranted) -> None:
        self.leases += events

    @property
    def streams(self) -> int:
        return sum(share.streams for share in self.leases[-1].engines)


class _Store:
    """Grants 9 streams to one of four replicas, or does what `answer` says."""

    def __init__(self) -> None:
        self.asked: list[Renewal] = []
        self.left: list[tuple[str, int]] = []
        self.is_closed = False
        self.answer: Callable[[Renewal], Awaitable[Granted]] = self.grant

    async def grant(self, renewal: Renewal) -> Granted:
        shares = tuple(LeasedShare(each.key, 9.0) for each in renewal.holdings)
        return Granted(renewal.epoch or 3, renewal.applied + 1, renewal.lease_s, 4, shares)

    async def down(self, renewal: Renewal) -> Granted:
        raise StoreUnavailableError("connection refused")

    async def renew(self, renewal: Renewal) -> Granted:
        self.asked.append(renewal)
        return await self.answer(renewal)

    async def leave(self, replica: str, epoch: int) -> None:
        self.left.append((replica, epoch))

    async def close(self) -> None:
        self.is_closed = True


class _World:
    def __init__(self, when_gone: _Gone = "share") -> None:
        self.gate, self.store, self.changes = _Gate(), _Store(), list[State]()
        settings = replace(_SETTINGS, when_gone=when_gone)
        self.loop = asyncio.get_running_loop()
        self.member = Membership(settings, cast("Driver", self.gate), self.loop.time, self.store)
        self.member.on_change = lambda status: self.changes.append(status.state)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(10.0):
            while not holds():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.005)


def _run(test: Callable[[_World], Awaitable[None]], when_gone: _Gone = "share") -> None:
    async def run() -> None:
        world = _World(when_gone)
        try:
            await test(world)
        finally:
            await world.member.leave()

    asyncio.run(run())


def test_nothing_is_let_in_before_the_first_lease_and_then_what_was_granted() -> None:
    async def joins(world: _World) -> None:
        world.member.start()
        assert world.gate.leases == [LeaseGranted(inf)]
        await world.until(lambda: world.member.status.state is State.LEASED)
        assert world.gate.leases[-1].engines == (EngineShare("engine", 9),)
        assert world.gate.leases[-1].replicas == 4
        assert world.gate.leases[-1].until < world.loop.time() + _SETTINGS.lease_s

    _run(joins)


def test_a_renewal_says_what_is_held_and_which_answer_is_in_force() -> None:
    async def renews(world: _World) -> None:
        world.member.start()
        await world.until(lambda: len(world.store.asked) >= 3)
        first, second = world.store.asked[:2]
        assert (first.epoch, first.applied, first.holdings[0].held) == (0, 0, 0.0)
        assert (second.epoch, second.applied, second.holdings[0].held) == (3, 1, 9.0)
        assert (second.holdings[0].used, second.holdings[0].wanted) == (2, 5)

    _run(renews)


@pytest.mark.parametrize(
    ("when_gone", "streams", "is_open"), [("share", 4, True), ("closed", 0, False), ("open", 16, True)]
)
def test_a_store_that_is_gone_is_what_the_settings_say_and_back_when_it_is_back(
    when_gone: _Gone, streams: int, is_open: bool
) -> None:
    async def outlives(world: _World) -> None:
        world.member.start()
        await world.until(lambda: world.member.status.state is State.LEASED)
        world.store.answer = world.store.down
        await world.until(lambda: world.member.status.state is State.HOLDING)
        assert world.member.is_open
        assert world.member.readiness == "holding"
        assert not world.member.snapshot().is_degraded
        before = world.gate.leases[-1].until
        await world.until(lambda: world.member.status.state is State.DEGRADED)
        assert world.loop.time() >= before
        assert world.gate.streams == streams
        assert world.gate.leases[-1].closed is (when_gone == "closed")
        assert world.gate.leases[-1].until == inf
        assert world.member.is_open is is_open
        assert world.member.readiness.startswith("degraded: connection refused; ")
        assert world.member.words()
        assert world.member.snapshot().is_degraded
        world.store.answer = world.store.grant
        await world.until(lambda: world.member.status.state is State.LEASED)
        assert (world.gate.streams, world.gate.leases[-1].closed) == (9, False)
        assert world.changes == [State.LEASED, State.HOLDING, State.DEGRADED, State.LEASED]
        assert not world.member.words()

    _run(outlives, when_gone)


def test_a_replica_that_never_had_an_answer_does_not_know_what_an_even_share_is() -> None:
    async def waits(world: _World) -> None:
        world.store.answer = world.store.down
        world.member.start()
        await world.until(lambda: len(world.store.asked) > 5)
        assert world.member.status.state is State.DEGRADED
        assert (world.gate.streams, world.gate.leases[-1].closed) == (0, True)
        assert not world.member.is_open
        assert world.member.snapshot().why == "connection refused"
        assert world.member.readiness == "degraded: connection refused; nothing is let in"

    _run(waits)


@pytest.mark.parametrize("is_reloaded", [False, True])
def test_a_machine_that_wakes_from_a_suspension_starts_nothing_by_the_lease_of_before(
    *, is_reloaded: bool
) -> None:
    async def wakes() -> None:
        loop, store, suspended_s = asyncio.get_running_loop(), _Store(), 0.0
        core = build_governor(core_settings(max_inflight=1), MonotonicClock.now())
        driver = Driver(core, MonotonicClock(), loop)
        settings = replace(_SETTINGS, lease_s=600.0, renew_every_s=60.0)
        member = Membership(settings, driver, lambda: MonotonicClock.now() + suspended_s, store)
        member.start()
        async with asyncio.timeout(10.0):
            while member.status.state is not State.LEASED:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.005)
        driver.post(Arrived(1), Arrived(2))
        assert driver.capacity().running == 1
        # All in one turn of the loop: no renewal comes first.
        suspended_s = 3600.0
        if is_reloaded:
            driver.reconfigure(core_settings(max_inflight=8))
        driver.post(Finished(1, released=True), Arrived(3))
        assert driver.capacity().running == 0
        await member.leave()

    asyncio.run(wakes())


def test_at_its_end_a_replica_gives_back_what_it_has() -> None:
    async def leaves(world: _World) -> None:
        world.member.start()
        await world.until(lambda: world.member.status.state is State.LEASED)
        await world.member.leave()
        assert world.store.left == [("one", 3)]
        assert world.store.is_closed

    _run(leaves)

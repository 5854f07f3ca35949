"""What every store promises: in memory, in a real Redis, and in another process of this host."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from millgate.cluster.connect import PASSWORD_ENV, RedisAddress, connect, read_address
from millgate.cluster.contract import (
    FencedError,
    Granted,
    Holding,
    Kind,
    Line,
    Renewal,
    Store,
    share_key,
)
from millgate.cluster.ledger import MemoryStore
from millgate.cluster.redis_store import RedisStore
from millgate.cluster.socket_store import SocketStore, StoreServer

STREAMS, RATE = share_key(Kind.STREAMS, "gpu / 0"), share_key(Kind.RATE, "acme", "tpm")
Story = Callable[[Store], Coroutine[object, object, None]]
Tell = Callable[[Story], None]
_LEASE_S = 0.6


@pytest.fixture(params=["memory", "redis", "socket"])
def tell(request: pytest.FixtureRequest) -> Tell:
    """Run a story on a store of each kind that is new and may have lost its state."""
    url = request.getfixturevalue("start_redis")().url if request.param == "redis" else ""

    def run(story: Story) -> None:
        async def live() -> None:
            store: Store
            if url:
                store = RedisStore(connect(read_address(url, {}), 1.0), "test", time.monotonic, timeout_s=1.0)
            else:
                store = MemoryStore(time.monotonic, may_have_lost=True)
            server = StoreServer(store) if request.param == "socket" else None
            if server is not None:
                await server.start()
                store = SocketStore(server.address, 1.0)
            try:
                await story(store)
            finally:
                await store.close()
                if server is not None:
                    await server.close()

        asyncio.run(live())

    return run


class One:
    """One replica that renews with what its last answer said."""

    def __init__(self, store: Store, name: str, wanted: float = 20.0) -> None:
        self.store, self.name, self.wanted = store, name, wanted
        self.used = 0.0
        self.epoch = self.applied = 0
        self.shares: dict[str, float] = {}

    async def renew(self, *lines: Line) -> Granted:
        streams = Holding(STREAMS, 8.0, self.used, self.wanted, 1.0, 30.0)
        rate = Holding(RATE, 9.0, 0.0, self.wanted)
        renewal = Renewal(self.name, self.epoch, self.applied, _LEASE_S, (streams, rate), lines)
        granted = await self.store.renew(renewal)
        self.epoch, self.applied = granted.epoch, granted.number
        self.shares = {share.key: share.amount for share in granted.shares}
        return granted


async def _rounds(*replicas: One, seconds: float) -> None:
    for _ in range(int(seconds / 0.1) + 1):
        for replica in replicas:
            await replica.renew()
        await asyncio.sleep(0.1)


def test_shares_are_whole_for_streams_and_exact_for_rates(tell: Tell) -> None:
    async def story(store: Store) -> None:
        first, second = One(store, "first"), One(store, "second", wanted=2.5)
        await _rounds(first, second, seconds=_LEASE_S + 0.3)
        assert (first.shares[RATE], second.shares[RATE]) == (6.5, 2.5)
        # The one stream that cannot be divided goes to the first that joined.
        assert (first.shares[STREAMS], second.shares[STREAMS]) == (6.0, 2.0)

    tell(story)


def test_of_a_tenants_cap_that_is_smaller_than_the_number_of_replicas_no_more_is_granted_than_there_is(
    tell: Tell,
) -> None:
    async def story(store: Store) -> None:
        key = share_key(Kind.TENANT, "acme")
        told = dict.fromkeys(("first", "second", "third", "fourth", "fifth"), (0, 0))
        shares: dict[str, float] = {}
        for turn in range(30):
            for name, (epoch, applied) in told.items():
                holding = Holding(key, 2.0, 0.0, 3.0, 1.0, 30.0, held=shares.get(name, 0.0))
                granted = await store.renew(Renewal(name, epoch, applied, _LEASE_S, (holding,)))
                told[name], shares[name] = (granted.epoch, granted.number), granted.shares[0].amount
                assert sum(shares.values()) <= 2.0
            await asyncio.sleep(0.03)
            assert turn < 25 or sorted(shares.values()) == [0.0, 0.0, 0.0, 1.0, 1.0]

    tell(story)


def test_answers_are_counted_and_name_the_replicas_and_their_lines(tell: Tell) -> None:
    async def story(store: Store) -> None:
        first, second, third = (One(store, name) for name in ("first", "second", "third"))
        await first.renew(Line("large model", 2, 1.5))
        await second.renew(Line("large model", 3, 0.25), Line("small", 1, 0.5))
        granted = await third.renew()
        again = await third.renew()

        assert (granted.number, again.number, granted.replicas, granted.epoch) == (1, 2, 3, again.epoch)
        assert granted.lines == (Line("large model", 5, 1.75), Line("small", 1, 0.5))

    tell(story)


def test_a_replica_that_was_silent_for_a_lease_is_fenced_and_joins_anew(tell: Tell) -> None:
    async def story(store: Store) -> None:
        silent, busy = One(store, "silent"), One(store, "busy")
        await _rounds(silent, busy, seconds=_LEASE_S + 0.3)
        await _rounds(busy, seconds=_LEASE_S + 0.3)
        assert busy.shares == {STREAMS: 4.0, RATE: 9.0}

        with pytest.raises(FencedError, match="ended"):
            await silent.renew()
        before, silent.epoch = silent.epoch, 0
        assert (await silent.renew()).epoch > before
        await _rounds(silent, busy, seconds=0.3)
        assert (silent.shares, busy.shares) == ({STREAMS: 4.0, RATE: 4.5}, {STREAMS: 4.0, RATE: 4.5})

    tell(story)


def test_leaving_gives_back_what_is_not_used_and_an_old_epoch_gives_back_nothing(tell: Tell) -> None:
    async def story(store: Store) -> None:
        leaving, left = One(store, "leaving"), One(store, "left")
        await _rounds(leaving, left, seconds=_LEASE_S + 0.3)
        leaving.used = 1.0
        await leaving.renew()
        await store.leave("leaving", leaving.epoch + 1)
        await left.renew()
        assert left.shares[STREAMS] == 4.0
        await store.leave("leaving", leaving.epoch)
        await store.leave("leaving", leaving.epoch)
        await store.leave("unknown", 1)
        await left.renew()
        assert left.shares == {STREAMS: 7.0, RATE: 9.0}

    tell(story)


def test_urls_and_the_environment_name_the_server() -> None:
    plain = read_address("redis://gate:p%40ss@cache:7000/3", {})
    assert plain == RedisAddress("", (("cache", 7000),), database=3, username="gate", password="p@ss")
    assert read_address("rediss://:x@cache", {PASSWORD_ENV: "y"}, "ca.pem") == RedisAddress(
        "", (("cache", 6379),), tls=True, ca_file="ca.pem", password="y"
    )
    assert read_address("redis+sentinel://a,[::1]:7/leases", {}) == RedisAddress(
        "sentinel", (("a", 26379), ("::1", 7)), service="leases"
    )
    assert read_address("rediss+cluster://a:1,b:2", {}).hosts == (("a", 1), ("b", 2))
    assert "p@ss" not in f"{plain} {plain!r}"


@pytest.mark.parametrize(
    "url", ["http://cache", "redis://", "redis://a:port", "redis+sentinel://a", "redis://a/leases", ""]
)
def test_what_is_no_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"Redis|Sentinel|host") as refused:
        read_address(url.replace("//a", "//:s3cret@a"), {})
    assert "s3cret" not in str(refused.value)


def test_the_wheel_has_the_script() -> None:
    root = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())

    packed = [each.distribution_path for each in WheelBuilder(str(root)).recurse_included_files()]

    assert "millgate/cluster/scripts/ledger.lua" in packed

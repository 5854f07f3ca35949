"""The ledger in Lua gives the same answers as the one in Python, bit by bit, over the same random renewals and times."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings as profile, strategies as some
from redis import Redis

from cluster.redis_server import RedisServer, needs_redis
from millgate.cluster.connect import connect, read_address
from millgate.cluster.contract import (
    FencedError,
    Granted,
    Holding,
    Kind,
    Line,
    Renewal,
    StoreUnavailableError,
    share_key,
)
from millgate.cluster.ledger import LeaseLedger
from millgate.cluster.redis_store import RedisStore, read_script

pytestmark = needs_redis
_KEYS = (share_key(Kind.STREAMS, "gpu 0"), share_key(Kind.KV, "gpu 0"), share_key(Kind.RATE, "acme", "tpm"))
_amounts = some.one_of(some.integers(0, 20).map(float), some.floats(0.0, 1000.0))
_weights = some.integers(0, 20).map(float)
# Every field is named: what `builds` makes up by itself may be no number, which is not equal to itself once records are compiled.
_holdings = some.builds(
    Holding,
    some.sampled_from(_KEYS),
    some.sampled_from([0.0, 2.0, 8.0, 16.0, 33.3]),
    _amounts,
    _amounts,
    floor=some.sampled_from([0.0, 1.0, 4.5]),
    lingers_s=some.sampled_from([0.0, 3.0]),
    seen=some.none() | some.integers(0, 20).map(float),
    seen_age_s=some.sampled_from([0.0, 0.3, 2.0]),
    waits_s=some.sampled_from([0.0, 0.7, 9.0]),
    held=some.sampled_from([0.0, 3.0]),
)
_lines = some.builds(
    Line,
    some.sampled_from(["large", "small"]),
    some.integers(0, 9),
    some.floats(0.0, 99.0),
    came=_weights,
    told=_weights,
)
_renewals = some.tuples(
    some.sampled_from(["a", "b", "c"]),
    some.sampled_from(["mine", "mine", "mine", "mine", "join", "ahead", "behind"]),
    some.integers(0, 2),
    some.lists(_holdings, max_size=3, unique_by=lambda holding: holding.key).map(tuple),
    some.lists(_lines, max_size=2).map(tuple),
)
_steps = some.tuples(
    some.sampled_from([0, 1_000, 250_000, 250_000, 700_000, 5_000_000, -9_000_000]),
    _renewals | some.just("leave"),
)


class Twins:
    """Both ledgers, asked the same at the same time; the script reads the test's clock in place of Redis' own."""

    def __init__(self, server: RedisServer) -> None:
        self.redis = Redis(port=server.port)
        self.redis.flushall()
        self.now_us = 1_700_000_000_000_000
        self.ledger = LeaseLedger(may_have_lost=True)
        script = read_script()
        assert script.count('redis.call("TIME")') == 1
        script = script.replace('redis.call("TIME")', 'redis.call("HMGET", "clock", "s", "us")')
        client = connect(read_address(server.url, {}), 5.0)
        self.store = RedisStore(client, "test", lambda: 0.0, timeout_s=5.0, script=script)
        self.known: dict[str, tuple[int, int]] = {}

    def passes(self, step_us: int) -> None:
        self.now_us += step_us
        self.redis.hset("clock", mapping={"s": self.now_us // 1_000_000, "us": self.now_us % 1_000_000})

    async def renew(self, renewal: Renewal) -> None:
        now = self.now_us // 1_000_000 + self.now_us % 1_000_000 / 1_000_000
        try:
            expected: Granted | str = self.ledger.renew(renewal, now)
        except (FencedError, StoreUnavailableError) as refused:
            expected = f"{type(refused).__name__} {refused}"
        try:
            found: Granted | str = await self.store.renew(renewal)
        except (FencedError, StoreUnavailableError) as refused:
            found = f"{type(refused).__name__} {refused}"
        assert found == expected
        if isinstance(expected, Granted):
            self.known[renewal.replica] = expected.epoch, expected.number

    async def leave(self, replica: str) -> None:
        epoch = self.known.get(replica, (0, 0))[0]
        self.ledger.leave(replica, epoch)
        await self.store.leave(replica, epoch)

    async def live(self, steps: list[tuple[int, object]]) -> None:
        replica = "a"
        for step_us, what in steps:
            self.passes(step_us)
            if not isinstance(what, tuple):
                await self.leave(replica)
                continue
            replica, kind, lag, holdings, lines = what
            epoch, number = self.known.get(replica, (0, 0))
            epoch = {"mine": epoch, "join": 0, "ahead": epoch + 5, "behind": max(1, epoch - 1)}[kind]
            await self.renew(Renewal(replica, epoch, max(0, number - lag), 2.0, holdings, lines))
        await self.store.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(Path(tmp_path_factory.mktemp("redis")))
    yield server
    server.kill()


@profile(
    max_examples=60,
    suppress_health_check=list(HealthCheck),
)
@given(steps=some.lists(_steps, min_size=10, max_size=60))
def test_both_ledgers_give_the_same_answers(server: RedisServer, steps: list[tuple[int, object]]) -> None:
    asyncio.run(Twins(server).live(steps))


def test_both_ledgers_hold_back_what_a_gauge_shows_for_equally_long(server: RedisServer) -> None:
    use = Holding(_KEYS[0], 16.0, 8.0, 16.0, 1.0, lingers_s=3.0, held=8.0)
    gone, left = ("a", "mine", 0, (use,), ()), ("b", "mine", 0, (use._replace(seen=12.0),), ())

    steps: list[tuple[int, object]] = [(250_000, each) for each in [gone, left] * 6 + [left] * 70]
    asyncio.run(Twins(server).live(steps))

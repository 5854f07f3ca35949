"""What another version has written or says: replicas of two versions on one store, records that cannot be read, unknown answers."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest
from redis import Redis

from cluster.asker import STREAMS, Asker
from cluster.redis_server import RedisServer
from millgate.cluster.connect import RedisClient, connect, read_address
from millgate.cluster.contract import FencedError, Renewal, StoreUnavailableError
from millgate.cluster.redis_store import RedisStore, read_script

Start = Callable[..., RedisServer]


def _of_another_layout(script: str) -> str:
    """Return the script as a later version may have it: another number, and its records have other names."""
    later = re.sub(r"\bholdings\b", "records", script.replace("local LAYOUT = 1", "local LAYOUT = 2"))
    assert later.count("records") > 5
    return later


@asynccontextmanager
async def _replica(server: RedisServer, name: str, script: str | None = None) -> AsyncIterator[Asker]:
    client = connect(read_address(server.url, {}), 0.5)
    store = RedisStore(client, "test", time.monotonic, timeout_s=0.5, script=script)
    asker = Asker(store, name)
    asker.used = 0.0
    try:
        yield asker
    finally:
        await store.close()


async def _renew_all(*askers: Asker) -> None:
    for asker in askers:
        try:
            await asker.renew()
        except FencedError:
            asker.granted = None
            await asker.renew()
    assert sum(asker.share(STREAMS) for asker in askers) <= 16.0, "the cap"
    await asyncio.sleep(0.1)


@pytest.mark.parametrize("upgrades", [True, False], ids=["upgrade", "rollback"])
def test_replicas_of_two_layouts_share_a_store_during_a_rolling_upgrade_and_the_cap_holds(
    start_redis: Start, upgrades: bool
) -> None:
    """Each read the other's records as its own: a field that was not there ended the script, or counted as nothing used."""
    scripts = [read_script(), _of_another_layout(read_script())]
    old, new = scripts if upgrades else reversed(scripts)

    async def live() -> None:
        server = start_redis()
        async with _replica(server, "one", old) as one, _replica(server, "two", old) as two:
            while not (one.granted and two.granted and one.share(STREAMS) == two.share(STREAMS) == 8.0):
                await _renew_all(one, two)
            async with _replica(server, "three", new) as three, _replica(server, "four", new) as four:
                for _ in range(15):
                    await _renew_all(one, two, three)
                assert (one.share(STREAMS), two.share(STREAMS), three.share(STREAMS)) == (8.0, 8.0, 0.0)
                for _ in range(15):  # the first of the old ones has left
                    await _renew_all(two, three, four)
                assert two.share(STREAMS) == 8.0
                async with asyncio.timeout(5.0):
                    while three.share(STREAMS) + four.share(STREAMS) != 16.0:
                        await _renew_all(three, four)

    asyncio.run(live())


@pytest.mark.parametrize("damage", [b"\xc1", b"\x93\x01", b"\xa3old", b""])
def test_a_record_that_cannot_be_read_counts_as_lost_state(start_redis: Start, damage: bytes) -> None:
    """Its script failed for every replica and for good: no replica had a lease until an operator deleted the key."""
    server = start_redis()

    async def story(asker: Asker) -> None:
        with Redis(port=server.port) as direct:
            direct.hset("millgate:{test}:leases", "=one", damage)
            assert (await asker.renew()).shares[0].amount == 16.0, "what it holds"
            direct.hset("millgate:{test}:leases", "@", damage)
            assert (await asker.renew()).shares[0].amount == 16.0

    async def live() -> None:
        async with _replica(server, "one") as one:
            await one.until_whole()
            await story(one)

    asyncio.run(live())


def test_an_answer_that_this_version_does_not_know_is_one_renewal_that_failed() -> None:
    class Stranger:
        async def evalsha(self, *_arguments: object) -> list[object]:
            return answers.pop(0)

    answers: list[list[object]] = [[b"divided", b"by another"], [b"granted", 1, 1, 1, 3, b"a", b"1.0"]]

    async def ask() -> None:
        store = RedisStore(cast("RedisClient", Stranger()), "test", time.monotonic)
        for _ in range(2):
            with pytest.raises(StoreUnavailableError, match="does not know"):
                await store.renew(Renewal("one", 0, 0, 1.0, ()))

    asyncio.run(ask())

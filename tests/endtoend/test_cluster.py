"""Four gateways, one engine with a cap of 16, one Redis: what becomes of the cap when any of them is killed, stopped or emptied.

The engine counts itself what it has at once, and says the most that it ever had.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from lab.cluster.processes import CAP

from cluster.redis_server import needs_redis
from endtoend.cluster_processes import Cluster, Crowd, until

pytestmark = needs_redis
# A lease, and the time in which a busy machine starts, stops and looks.
_LEASE_S, _SLACK_S = 2.0, 6.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


@pytest.fixture
def leased(cluster: Cluster) -> Cluster:
    """A cluster in which every replica has a lease and nothing runs."""
    asyncio.run(_until_leased(cluster))
    return cluster


async def _until_leased(cluster: Cluster) -> float:
    return await until(lambda: all(each.is_leased() for each in cluster.replicas), 2 * _LEASE_S + _SLACK_S)


def _under_load(
    cluster: Cluster, scene: Callable[[Crowd], Awaitable[None]], replicas: tuple[int, ...] = (0,)
) -> Crowd:
    """Play a scene while each of these replicas has 20 clients; the cap is never broken."""

    async def play() -> Crowd:
        crowd = Crowd(
            lambda client: cluster.replicas[replicas[client % len(replicas)]].port, 20 * len(replicas)
        )
        crowd.start()
        try:
            await until(lambda: cluster.running() == CAP, _LEASE_S + _SLACK_S)
            await scene(crowd)
        finally:
            await crowd.stop()
        return crowd

    crowd = asyncio.run(play())
    assert cluster.most() == CAP
    return crowd


async def _flows(cluster: Cluster) -> None:
    """Answers are given, and the engine is full again."""
    before = cluster.stats()["finished"]
    await until(lambda: cluster.stats()["finished"] >= before + 2 * CAP, _LEASE_S + _SLACK_S)
    await until(lambda: cluster.running() == CAP, _LEASE_S + _SLACK_S)


def test_one_replica_with_all_the_load_uses_the_whole_cap(leased: Cluster) -> None:
    crowd = _under_load(leased, lambda _: _flows(leased))
    assert set(crowd.statuses) == {200}


def test_the_streams_of_a_killed_replica_come_back(leased: Cluster) -> None:
    async def kill(_crowd: Crowd) -> None:
        leased.replicas[3].kill()
        await _flows(leased)
        await until(lambda: leased.replicas[0].state()["cluster"]["replicas"] == 3, _LEASE_S + _SLACK_S)

    _under_load(leased, kill, (0, 3))
    leased.restart(3)


def test_a_replica_that_stood_still_for_longer_than_its_lease_admits_nothing_by_it(leased: Cluster) -> None:
    async def stop(_crowd: Crowd) -> None:
        leased.replicas[1].send(signal.SIGSTOP)
        await asyncio.sleep(5.0)
        await _flows(leased)
        leased.replicas[1].send(signal.SIGCONT)
        await _until_leased(leased)
        await _flows(leased)

    _under_load(leased, stop, (0, 1))


def test_a_redis_that_stands_still_costs_no_request_and_no_more_than_the_cap(leased: Cluster) -> None:
    async def stop(_crowd: Crowd) -> None:
        leased.redis.stop()
        await until(lambda: leased.replicas[0].readiness()["detail"]["cluster"] != "leased", _SLACK_S)
        await until(
            lambda: leased.replicas[0].readiness()["detail"]["cluster"].startswith("degraded"),
            _LEASE_S + _SLACK_S,
        )
        assert leased.replicas[0].readiness()["ready"]
        before = leased.stats()["finished"]
        await until(lambda: leased.stats()["finished"] > before + 4, _SLACK_S)
        leased.redis.go_on()
        await _until_leased(leased)
        await _flows(leased)

    _under_load(leased, stop, (0, 1))
    states = [each.get("state") for each in leased.replicas[0].events() if each.get("event") == "cluster"]
    assert states[-3:] == ["holding", "degraded", "leased"]


def test_a_redis_that_lost_everything_grants_what_is_held_and_then_the_rest(leased: Cluster) -> None:
    async def flush(_crowd: Crowd) -> None:
        await _flushed(leased)
        await _flows(leased)
        leased.redis.kill()
        leased.redis.start()
        await _until_leased(leased)
        await _flows(leased)

    _under_load(leased, flush, (0, 2))


async def _flushed(cluster: Cluster) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", cluster.redis.port)
    writer.write(b"FLUSHALL\r\n")
    assert (await reader.readline()).startswith(b"+OK")
    writer.close()


@pytest.mark.parametrize(("policy", "running", "ready"), [("closed", 0, False), ("open", CAP, True)])
def test_what_a_replica_does_without_its_store_is_what_its_settings_say(
    tmp_path: Path, policy: str, running: int, *, ready: bool
) -> None:
    cluster = Cluster(tmp_path, replicas=1, cluster={"when_store_is_gone": policy})

    async def lose() -> None:
        await _until_leased(cluster)
        cluster.redis.kill()
        replica = cluster.replicas[0]
        await until(
            lambda: replica.readiness()["detail"]["cluster"].startswith("degraded"), _LEASE_S + _SLACK_S
        )
        assert replica.readiness()["ready"] is ready
        assert replica.state()["engines"][0]["limit"] == running

    try:
        asyncio.run(lose())
    finally:
        cluster.close()

"""Short forms of `python -m lab cluster`: four gates as processes, a real Redis, and one fault after the other."""

import asyncio
import signal
from pathlib import Path

import pytest
from lab.cluster import caps, outage, quotas
from lab.cluster.balancer import Balancer
from lab.cluster.processes import CAP, LEASE_S, REPLICAS, Engine, Stack, until

from cluster.redis_server import needs_redis

pytestmark = needs_redis


@pytest.mark.parametrize("balanced", [False, True])
def test_under_faults_the_engine_never_has_more_than_its_cap_and_all_shares_come_back(
    tmp_path: Path, *, balanced: bool
) -> None:
    report = asyncio.run(caps.measure(tmp_path, 24.0, 7.0, 5, "closed", balanced=balanced))

    assert len(report.struck) >= 2
    assert report.peak <= CAP
    assert report.goodput > 0.0
    assert report.running == 0
    assert sum(report.shares) == CAP
    assert "| whole run |" in caps.table(report)


def test_a_balancer_leaves_a_gate_out_while_it_stands_still(tmp_path: Path) -> None:
    async def scene() -> None:
        engine = Engine(tmp_path)
        await engine.run.ready()
        stack = Stack(tmp_path, 2, {"url": engine.url})
        balancer = Balancer(stack.gates)
        try:
            await stack.start()
            first, second = stack.gates
            balancer.start()
            first.run.send(signal.SIGSTOP)
            assert await until(lambda: balancer.ports() == [second.port], 10.0)
            first.run.send(signal.SIGCONT)
            assert await until(lambda: balancer.ports() == [first.port, second.port], 10.0)
        finally:
            balancer.stop()
            await stack.close()
            engine.run.kill()

    asyncio.run(scene())


@pytest.mark.parametrize("skewed", [False, True])
def test_under_faults_no_window_has_more_than_its_quota(tmp_path: Path, *, skewed: bool) -> None:
    report = asyncio.run(quotas.measure(tmp_path, 12.0, 4.0, 6, "closed", skewed=skewed))

    assert report.faults == 2
    assert report.requests > 0
    assert report.most_share <= 1.0
    assert "INV-6" in quotas.table([report])


@pytest.mark.parametrize(
    ("policy", "ready", "most"),
    [("share", REPLICAS, CAP), ("closed", 0, 0), ("open", REPLICAS, REPLICAS * CAP)],
)
def test_without_redis_replicas_do_as_their_policy_says(
    tmp_path: Path, policy: str, ready: int, most: int
) -> None:
    report = asyncio.run(outage.measure(tmp_path, policy, 1.0, 7))

    assert report.gone_s > LEASE_S, (
        "replicas are looked at once their leases are over, and that long is what is told"
    )
    assert report.ready == ready
    assert report.peak <= most
    assert (report.answered_per_s > 0.0) == (policy != "closed")
    assert report.recovered
    assert policy in outage.table([report])

"""The page of the largest gate: how many series it has at most, also of several workers, and that it lets others run."""

import asyncio
import dataclasses

import pytest

from millgate.config.lanes import MAX_LANES
from millgate.config.schema import MAX_ENGINES
from millgate.core.decisions import Admit, Ended
from millgate.core.events import EngineSeen
from millgate.core.settings import EngineSettings, LaneSettings, Settings
from millgate.core.snapshot import Snapshot
from millgate.core.words import Outcome
from millgate.observe.door import DoorSnapshot, ServiceSnapshot
from millgate.observe.merging import merged
from millgate.observe.prometheus import EndedCounts, Exposition, Records
from millgate.observe.traffic import MOST_ENGINES, MOST_LANES, MOST_TENANTS, Traffic
from millgate.wiring.governor import build_governor
from observe.test_prometheus import SLO, SNAPSHOT, WARNING


def largest_gate(begin: int = 0, workers: int = 1) -> tuple[Snapshot, Traffic]:
    """Return the snapshot and the traffic of as many lanes, engines, pools and tenants as a configuration may name.

    Tenants, and what is used first, are counted from `begin`.
    """
    lanes = tuple(LaneSettings(f"lane-{number}") for number in range(MAX_LANES))
    engines = tuple(
        EngineSettings(f"engine-{number}", 8, kv_tokens=1000, prefill_tokens=100, models=(f"model-{number}",))
        for number in range(MAX_ENGINES)
    )
    governor = build_governor(Settings(lanes, engines), 0.0)
    for engine in engines:
        governor.handle(EngineSeen(engine.name, 1.0, 1, 1, 0.5, 1), 1.0)
    snapshot = governor.snapshot(1.0)
    slo = SLO._replace(tpot=SLO.ttft)
    pools = tuple(pool._replace(warning=WARNING._replace(time_to_full_s=1.0)) for pool in snapshot.pools)
    snapshot = dataclasses.replace(
        snapshot, pools=pools, lanes=tuple(dataclasses.replace(lane, slo=slo) for lane in snapshot.lanes)
    )
    traffic = Traffic(workers=workers)
    for number in range(begin, begin + 2 * MOST_TENANTS):
        lane, name = f"lane-{number % MAX_LANES}", f"engine-{number % MAX_ENGINES}"
        traffic.arrived(f"tenant-{number}", 1.0)
        traffic.refused(f"tenant-{number}", lane, 1.0)
        ended = Ended(1, Outcome.GOOD, lane, name, 0.1, 2.0, 0.3, 9, 9, None, cached_tokens=4)
        traffic.ended(f"tenant-{number}", f"model-{number}", ended, 1.0)
        traffic.admitted(lane, Admit(1, (), 0.5, 0.1, 1.0, due_at=0.5, window_s=0.1), 1.0)
        traffic.decoded(name, 1.0, 1.0, 9)
    return snapshot, traffic


def test_the_largest_gate_has_at_most_5300_series() -> None:
    snapshot, traffic = largest_gate()
    door = DoorSnapshot(1, 1, 1, 1, 1)
    service = ServiceSnapshot(True, 1, 1, 0.0, 0.0, 1, 1)

    page = Exposition(lambda: snapshot, lambda: door, lambda: service, traffic.read).render()[0].decode()
    series = [line for line in page.splitlines() if not line.startswith("#")]

    assert len(series) == len({line.rpartition(" ")[0] for line in series})
    assert 4000 < len(series) <= 5300
    for kind, most in (("lane", MOST_LANES), ("engine", MOST_ENGINES), ("tenant", MOST_TENANTS)):
        metric = {"lane": "wait_seconds_count", "engine": "engine_gap_seconds_count"}.get(
            kind, "tenant_good_total"
        )
        assert sum(line.startswith(f"millgate_{metric}{{") for line in series) == most + 1
        assert any(line.startswith(f'millgate_{metric}{{{kind}="other"}}') for line in series)


def test_several_workers_together_and_those_that_have_ended_have_no_more_series_than_one() -> None:
    """Each knows other lanes, engines and tenants apart: those that it has met first."""
    ended, running = EndedCounts(), []
    for worker in range(8):
        snapshot, traffic = largest_gate(worker * 233, workers=4)
        service = ServiceSnapshot(True, 1, 1, 0.0, 0.0, 1, 1)
        one = Records(snapshot, 1, DoorSnapshot(1, 1, 1, 1, 1), service, traffic.read())
        if worker < 4:
            ended.add(one)
        else:
            running.append(one)
    exposition = Exposition(lambda: SNAPSHOT)
    exposition.read, exposition.ended = lambda: merged(running), ended
    page = exposition.render()[0].decode()
    series = [line for line in page.splitlines() if not line.startswith("#")]

    assert len(series) == len({line.rpartition(" ")[0] for line in series})
    assert 4000 < len(series) <= 5300

    def of(name: str) -> dict[str, float]:
        rows = [line.rpartition(" ") for line in series if line.startswith(f"millgate_{name}{{")]
        return {each[0].partition('"')[2].partition('"')[0]: float(each[2]) for each in rows}

    for name, most in (("wait_seconds_count", MOST_LANES), ("tenant_attempts_total", MOST_TENANTS)):
        assert len(of(name)) == most + 1
        assert sum(of(name).values()) == 8 * 2 * MOST_TENANTS
    assert set(of("wait_seconds_count")) == {*(f"lane-{number}" for number in range(MOST_LANES)), "other"}
    # The tenants of those that run have their own labels: what one of them has counted never moves.
    assert sum(len(each.traffic.tenants) - 1 for each in running if each.traffic) == MOST_TENANTS


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
def test_a_page_rendered_in_pieces_is_the_same_page_and_lets_others_run(accept: str) -> None:
    snapshot, traffic = largest_gate()
    exposition = Exposition(lambda: snapshot, traffic=traffic.read)

    def lasting(page: tuple[bytes, str]) -> list[bytes]:
        return [line for line in page[0].splitlines() if b"process_" not in line]

    async def both() -> int:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.ensure_future(others())
        pieces = await exposition.render_in_pieces(accept)
        other.cancel()
        assert lasting(pieces) == lasting(exposition.render(accept))
        return turns

    assert asyncio.run(both()) > 20

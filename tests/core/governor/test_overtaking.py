"""How much longer lines of several tenants take: what outcomes teach, and whom it concerns."""

import pytest

from core.world import governor
from millgate.core.decisions import Yield
from millgate.core.events import Arrived
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior
from millgate.core.state.pool import Overtaking

PRIOR = ServicePrior(0.0, 0.0, 0.02, 0.0)
LANE = LaneSettings("lane", ttft_slo_s=60.0, deadline_s=60.0, max_queue=0)


def test_a_broken_promise_weighs_as_much_as_nineteen_kept_ones() -> None:
    overtaking = Overtaking()
    overtaking.share = 0.5
    overtaking.was_broken(4.0, 1.0)
    assert overtaking.share == pytest.approx(0.5 + 0.1 * 0.95)
    for _ in range(95):
        overtaking.was_kept(4.0, 5.0)
    assert overtaking.share == pytest.approx(0.5)


def test_a_stream_that_a_newcomer_finds_free_says_that_waits_are_too_long() -> None:
    overtaking = Overtaking()
    overtaking.share = 0.5
    overtaking.was_idle(4.0, 1.0)
    assert overtaking.share == pytest.approx(0.4)


def test_where_more_permits_end_during_a_hint_each_outcome_weighs_less() -> None:
    usual, faster, longer, short = Overtaking(), Overtaking(), Overtaking(), Overtaking()
    usual.was_broken(3.0, 2.0)
    faster.was_broken(3.0, 20.0)
    longer.was_broken(30.0, 2.0)
    short.was_broken(0.1, 2.0)
    assert usual.share == pytest.approx(10.0 * faster.share)
    assert usual.share == pytest.approx(10.0 * longer.share)
    assert short.share == pytest.approx(3.0 * usual.share)


def test_no_wait_is_shortened_nor_more_than_doubled() -> None:
    overtaking = Overtaking()
    overtaking.was_kept(1.0, 0.01)
    assert overtaking.share == 0.0
    overtaking.was_broken(1.0, 0.01)
    assert overtaking.share == 1.0


def _hint_s(gate: Governor, attempt: int, tenant: str) -> float:
    [decision] = gate.handle(
        Arrived(attempt, tenant=tenant, prompt_bytes=400, max_tokens=100, fingerprint=lambda: attempt), 0.0
    )
    assert isinstance(decision, Yield)
    assert decision.retry
    return decision.retry_after_s


def _last_hint_s(tenants: list[str], share: float) -> float:
    """Return the last hint of a crowd before one stream, where waits are stretched by so much."""
    gate = governor(LANE, engines=(EngineSettings("engine", 1, prior=PRIOR),))
    gate.handle(Arrived(0, prompt_bytes=400, max_tokens=100), 0.0)
    for pool in gate._knowledge.engines.routes.pools:
        pool.overtaking.share = share
    return [_hint_s(gate, number, tenant) for number, tenant in enumerate(tenants, 1)][-1]


def test_only_lines_of_several_tenants_are_stretched() -> None:
    alone, mixed = ["a", "a", "a", "a"], ["a", "b", "a", "b"]
    assert _last_hint_s(alone, 0.5) == _last_hint_s(alone, 0.0)
    assert _last_hint_s(mixed, 0.5) == pytest.approx(1.5 * _last_hint_s(mixed, 0.0), rel=0.1)

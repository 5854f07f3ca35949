"""Who goes first of those who are back when told and wait: the line's turns, and of one tenant the older."""

from math import inf

import pytest

from core.world import governor, steady_prior
from millgate.core.decisions import Admit, Decision, Queue, Yield
from millgate.core.events import Arrived, Finished, Released
from millgate.core.governor import Governor
from millgate.core.governor.knowledge import Waiting
from millgate.core.settings import EngineSettings, LaneSettings

SERVICE_S = 10.0


def _gate(order: str, max_queue: int = 0) -> Governor:
    lane = LaneSettings("lane", ttft_slo_s=600.0, deadline_s=600.0, order=order, max_queue=max_queue)
    return governor(lane, engines=(EngineSettings("engine", 1, prior=steady_prior(SERVICE_S)),))


def _come(gate: Governor, attempt: int, tenant: str, body: int, now: float, retry: int = 0) -> Decision:
    arrived = Arrived(attempt, tenant=tenant, max_tokens=100, fingerprint=lambda: body, retry_count=retry)
    return gate.handle(arrived, now)[0]


def _end(gate: Governor, attempt: int, now: float) -> list[int]:
    """End this answer, and return who is let in then."""
    decisions = (*gate.handle(Finished(attempt), now), *gate.handle(Released(attempt), now))
    return [each.attempt for each in decisions if isinstance(each, Admit)]


def _due_at(refused: Decision, now: float) -> float:
    assert isinstance(refused, Yield)
    assert refused.retry
    return now + refused.retry_after_s


def _ranked_at(gate: Governor, body: int, now: float) -> float:
    """Return the age by which this request of the short line will be ranked."""
    entry = gate._knowledge.engines.routes.pools[0].appointments.match("short", body, now, 1)
    assert entry is not None
    return entry.as_old_as


@pytest.mark.parametrize("order", ["arrival", "short_first"])
def test_who_is_back_when_told_goes_by_its_turn_and_not_by_its_age(order: str) -> None:
    """One place in two is promised to the short line: its newcomer goes before the second of the long one."""
    gate = _gate(order)
    _come(gate, 0, "long", 0, 0.0)
    first, second = [_due_at(_come(gate, body, "long", body, 0.0), 0.0) for body in (1, 2)]
    short = _due_at(_come(gate, 3, "short", 3, 0.1), 0.1)
    assert short < second + 1.0
    assert _end(gate, 0, first) == []
    assert isinstance(_come(gate, 11, "long", 1, first, 1), Admit)
    both = max(short, second)
    assert isinstance(_come(gate, 12, "long", 2, both, 1), Queue)
    assert isinstance(_come(gate, 13, "short", 3, both, 1), Queue)

    assert _end(gate, 11, both + 0.5) == [13]


def test_of_one_tenant_the_older_goes_first_though_both_were_put_before_others() -> None:
    gate = _gate("arrival")
    for body in range(4):
        _come(gate, body, "long", body, 0.0)
    old = _due_at(_come(gate, 4, "short", 4, 0.1), 0.1)
    assert _ranked_at(gate, 4, old) == 0.0
    assert isinstance(_come(gate, 14, "short", 4, old, 1), Queue)
    young = _due_at(_come(gate, 5, "short", 5, old + 0.1), old + 0.1)

    assert 0.0 < _ranked_at(gate, 5, young) < 0.1


def test_where_newcomers_are_queued_everybody_waits_by_its_own_age() -> None:
    gate = _gate("arrival", max_queue=1)
    for body in range(5):
        _come(gate, body, "long", body, 0.0)
    assert isinstance(_come(gate, 5, "short", 5, 0.1), Yield)
    assert _ranked_at(gate, 5, 40.0) == 0.1


def test_the_youngest_of_a_tenant_counts_while_one_of_it_waits() -> None:
    waiting = Waiting()
    waiting.begins("a", 2.0)
    waiting.begins("a", 1.0)
    waiting.begins("b", 9.0)
    assert waiting.youngest("a") == 2.0
    waiting.ends("a")
    assert waiting.youngest("a") == 2.0
    waiting.ends("a")
    assert waiting.youngest("a") == -inf
    assert waiting.youngest("b") == 9.0

"""How long a due return is queued where nothing else is: as long as its lane allows, down to not at all."""

from typing import Any

import pytest

from core.world import governor, steady_prior
from millgate.core.decisions import Queue, Yield
from millgate.core.events import Arrived
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings
from millgate.core.words import Reason


def _gate(hold_due_s: float) -> Governor:
    lane = LaneSettings("lane", deadline_s=600.0, max_queue=0, hold_due_s=hold_due_s)
    return governor(lane, engines=(EngineSettings("engine", 1, prior=steady_prior(20.0)),))


def _ask(gate: Governor, attempt: int, now: float = 0.0, **fields: Any) -> object:
    arrival = Arrived(attempt, prompt_bytes=400, max_tokens=100, fingerprint=lambda: 7)
    return gate.handle(arrival._replace(**fields), now)[0]


@pytest.mark.parametrize("longest_s", [0.2, 1.0])
def test_a_due_return_is_queued_no_longer_than_its_lane_allows(longest_s: float) -> None:
    gate = _gate(longest_s)
    _ask(gate, 1)
    refused = _ask(gate, 2)
    assert isinstance(refused, Yield)
    back = refused.retry_after_s

    assert isinstance(_ask(gate, 3, back), Queue)
    assert gate.next_wake() == pytest.approx(back + longest_s)


def test_a_pure_yield_queues_nothing_ever_not_even_a_due_return() -> None:
    """`max_queue: 0` and `hold_due: 0s`: each answer is there within one turn of the loop."""
    gate = _gate(0.0)
    _ask(gate, 1)
    now = 0.0
    for attempt in range(2, 30):
        answer = _ask(gate, attempt, now, retry_count=attempt - 2)
        assert isinstance(answer, Yield)
        assert answer.reason is Reason.SATURATED
        assert gate.snapshot(now).lanes[0].queued == 0
        now += answer.retry_after_s

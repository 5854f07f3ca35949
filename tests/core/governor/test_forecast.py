"""When a newcomer's first token would come: behind permits, and behind prompts, each counted once."""

from dataclasses import replace
from typing import Any

import pytest

from core.world import governor
from millgate.core.decisions import Admit, Decision, Queue, Yield
from millgate.core.events import Arrived, FirstToken
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior
from millgate.core.words import Reason

_READS = ServicePrior(0.0, 0.005, 0.01, 0.0)
"""100 tokens, the usual prompt here, in 0.5 s; an answer of 100 in 1 s."""


def _gate(
    prefill_tokens: int | None,
    deadline_s: float = 60.0,
    *,
    order: str = "arrival",
    streams: int = 20,
    engines: int = 1,
    max_queue: int | None = None,
    **more: Any,
) -> Governor:
    lane = LaneSettings("lane", deadline_s=deadline_s, order=order, max_queue=max_queue)
    each = EngineSettings("engine", streams, prefill_tokens=prefill_tokens, **{"prior": _READS, **more})
    return governor(lane, engines=tuple(replace(each, name=f"engine {number}") for number in range(engines)))


def _ask(gate: Governor, attempt: int, now: float = 0.0, prompt_tokens: int = 100) -> Decision:
    return gate.handle(
        Arrived(attempt, prompt_bytes=4 * prompt_tokens, max_tokens=100, fingerprint=lambda: attempt), now
    )[0]


def _wait_s(decision: Decision) -> float:
    assert isinstance(decision, Queue)
    return decision.expected_wait_s


def test_a_line_of_prompts_takes_as_long_as_its_tokens_not_as_its_number() -> None:
    """One is read, one waits; behind it are 1000 tokens or 100, and 0.5 s for the one that is read."""
    waits = []
    for prompt_tokens in (1_000, 100):
        gate = _gate(100)
        _ask(gate, 1)
        _ask(gate, 2, prompt_tokens=prompt_tokens)
        waits.append(_wait_s(_ask(gate, 3)))

    assert waits == pytest.approx([5.5, 1.0])


def test_who_stands_in_the_middle_waits_for_its_part_of_what_waits() -> None:
    """Back from before the others came, with a lane that counts its age: two of 600 tokens wait, one of them ahead."""
    gate = _gate(100)
    _ask(gate, 1, 0.0)
    _ask(gate, 2, 0.0, prompt_tokens=600)
    _ask(gate, 3, 0.2, prompt_tokens=600)
    back = Arrived(4, prompt_bytes=400, max_tokens=100, first_seen=0.1)
    (queued,) = gate.handle(back, 0.2)

    # 0.3 s of the first prompt are left, then 600 tokens.
    assert _wait_s(queued) == pytest.approx(0.3 + 600 * 0.005)


def test_prompts_inside_the_engine_are_counted_once() -> None:
    """Eight of 100 tokens fill the meter, 4 s; the ninth has read 900 after 4.5 s, and not after 8.5."""
    answers = {}
    for deadline_s in (4.4, 4.6):
        gate = _gate(800, deadline_s)
        admitted = [_ask(gate, attempt) for attempt in range(8)]
        assert all(isinstance(each, Admit) for each in admitted)
        answers[deadline_s] = _ask(gate, 8)

    refused, queued = answers.values()
    assert isinstance(refused, Yield)
    assert refused.reason is Reason.TOO_LATE
    assert refused.value == pytest.approx(4.5)
    assert _wait_s(queued) == pytest.approx(0.5)


def test_what_an_engine_has_read_since_the_last_first_token_is_no_longer_ahead() -> None:
    """A prompt of 1000 tokens takes 5 s; after 4 there is 1 s left of it."""
    gate = _gate(None)
    _ask(gate, 1, 0.0, prompt_tokens=1_000)
    admit = _ask(gate, 2, 4.0)

    assert isinstance(admit, Admit)
    assert admit.expected_ttft_s == pytest.approx(1.0 + 0.5)


def test_engines_read_side_by_side() -> None:
    """Two engines read one prompt each: of the two that would be ahead on one engine, half is ahead on each."""
    waits = []
    for engines in (1, 2):
        gate = _gate(100, engines=engines)
        for attempt in range(engines):
            assert isinstance(_ask(gate, attempt), Admit)
        queued = [_ask(gate, 10 + number) for number in range(4)]
        waits.append([_wait_s(each) for each in queued])

    assert waits[0] == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert waits[1] == pytest.approx([0.25, 0.5, 0.75, 1.0])


def test_a_line_that_waits_for_streams_waits_for_answers() -> None:
    """Two streams, both decoding: nothing is left to read, and each answer takes a second."""
    gate = _gate(10_000, streams=2)
    for attempt in (1, 2):
        _ask(gate, attempt, 0.0)
    gate.handle(FirstToken(1), 0.5)
    gate.handle(FirstToken(2), 1.0)

    assert _wait_s(_ask(gate, 3, 1.0)) == pytest.approx(0.5)


def test_full_memory_is_waited_for_like_streams() -> None:
    """400 KV tokens hold two requests of 200; 18 streams and all of the prefill meter are free."""
    gate = _gate(10_000, kv_tokens=400)
    for attempt in (1, 2):
        _ask(gate, attempt, 0.0)
    gate.handle(FirstToken(1), 0.5)
    gate.handle(FirstToken(2), 1.0)

    assert _wait_s(_ask(gate, 3, 1.0)) == pytest.approx(0.5)


def test_nobody_is_told_to_come_back_before_the_prompts_that_wait_have_been_read() -> None:
    """Behind one of 100 tokens, the only one that was let in so far, ten of 1000 wait: 50 s of reading."""
    gate = _gate(100, 52.0)
    _ask(gate, 0)
    for attempt in range(1, 11):
        assert isinstance(_ask(gate, attempt, prompt_tokens=1_000), Queue)
    refused = _ask(gate, 11, prompt_tokens=1_000)

    assert isinstance(refused, Yield)
    assert refused.retry_after_s > 45.0


@pytest.mark.parametrize("order", ["arrival", "short_first"])
def test_where_nobody_is_queued_the_prompts_of_those_who_are_away_count(order: str) -> None:
    """19 of 20 streams are free, but the meter is full: each of 1000 tokens takes 5 s to be read. Hints are a little early."""
    gate = _gate(100, order=order, max_queue=0, prior=replace(_READS, certain=True))
    _ask(gate, 0)
    refused = [_ask(gate, attempt, prompt_tokens=1_000) for attempt in range(1, 6)]
    hints_s = [each.retry_after_s for each in refused if isinstance(each, Yield)]

    assert hints_s == pytest.approx([0.5 + 5.0 * ahead for ahead in range(5)], rel=0.15, abs=0.3)

"""Where KV memory is full while streams are free: waits and hints count the tokens that running permits give back."""

from dataclasses import replace

import pytest

from core.world import governor
from millgate.core.decisions import Admit, Decision, Queue, Yield
from millgate.core.events import Arrived, ClientGone, Finished, FirstToken, Released
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior
from millgate.core.words import Counted, Reason

_READS = ServicePrior(0.0, 0.005, 0.01, 0.0)
"""100 tokens are read in 0.5 s; an answer of 100 takes 1 s."""
_ENGINE = EngineSettings("engine", 20, prefill_tokens=10_000, prior=_READS)


def _gate(kv_tokens: int, max_queue: int | None = None) -> Governor:
    lane = LaneSettings("lane", deadline_s=60.0, max_queue=max_queue)
    return governor(lane, engines=(replace(_ENGINE, kv_tokens=kv_tokens),))


def _ask(gate: Governor, attempt: int, now: float = 0.0, tokens: int = 200) -> Decision:
    """Ask for so many KV tokens, half of them to be read."""
    half = tokens // 2
    arrival = Arrived(attempt, prompt_bytes=4 * half, max_tokens=half, fingerprint=lambda: attempt)
    return gate.handle(arrival, now)[0]


def _two_run(kv_tokens: int) -> Governor:
    """Two of 200 tokens, which end at 1.5 s and at 2 s."""
    gate = _gate(kv_tokens)
    for attempt in (1, 2):
        assert isinstance(_ask(gate, attempt), Admit)
    gate.handle(FirstToken(1), 0.5)
    gate.handle(FirstToken(2), 1.0)
    return gate


def _wait_s(decision: Decision) -> float:
    assert isinstance(decision, Queue)
    return decision.expected_wait_s


def test_a_request_that_is_larger_than_what_is_left_waits_although_a_usual_one_would_fit() -> None:
    """200 tokens are left, and the one that waits needs 300."""
    assert _wait_s(_ask(_two_run(600), 3, 1.0, tokens=300)) == pytest.approx(0.5)


def test_a_request_that_needs_the_memory_of_two_waits_for_both() -> None:
    assert _wait_s(_ask(_two_run(600), 3, 1.0, tokens=500)) == pytest.approx(1.0)


def test_a_request_that_reserves_more_than_there_is_waits_until_it_is_alone() -> None:
    assert _wait_s(_ask(_two_run(600), 3, 1.0, tokens=1_100)) == pytest.approx(1.0)


def test_a_list_to_embed_that_is_longer_than_the_memory_waits_until_it_is_alone_and_is_no_413() -> None:
    """20 texts of 100 tokens, where 600 fit: the engine reads them in rounds. One text of 2,000 fits never."""
    chunks = Arrived(3, prompt_bytes=8_000, max_tokens=0, answers=20)
    gate = _two_run(600)
    assert _wait_s(gate.handle(chunks, 1.0)[0]) == pytest.approx(1.0)
    gate.handle(Finished(1, 100, 100), 1.5)
    assert not any(isinstance(each, Admit) for each in gate.handle(Released(1), 1.5))
    gate.handle(Finished(2, 100, 100), 2.0)
    assert any(isinstance(each, Admit) for each in gate.handle(Released(2), 2.0))
    refused = gate.handle(chunks._replace(attempt=4, answers=1), 2.0)[0]
    assert isinstance(refused, Yield)
    assert (refused.reason, refused.retry) == (Reason.TOO_LARGE, False)


def test_what_stands_before_it_needs_memory_too() -> None:
    """The first lacks 100 tokens, and both together 300: more than one permit gives back."""
    gate = _two_run(600)
    assert isinstance(_ask(gate, 3, 1.0, tokens=300), Queue)
    assert _wait_s(_ask(gate, 4, 1.0)) == pytest.approx(1.0)


def test_memory_that_is_left_for_all_is_not_waited_for() -> None:
    """The prompt meter alone keeps it out, for as long as 100 tokens are read."""
    lane = LaneSettings("lane", deadline_s=60.0)
    gate = governor(lane, engines=(replace(_ENGINE, kv_tokens=900, prefill_tokens=100),))
    assert isinstance(_ask(gate, 1), Admit)
    assert _wait_s(_ask(gate, 2)) == pytest.approx(0.5)


def _hint_s(gate: Governor, attempt: int, now: float, tokens: int) -> float:
    decision = _ask(gate, attempt, now, tokens)
    assert isinstance(decision, Yield)
    assert decision.retry
    return decision.retry_after_s


def _taught() -> tuple[Governor, float]:
    """Four of 200 tokens fill the memory, time and again, and a fifth waits; return the gate, empty, and the time."""
    gate, now = _gate(810, max_queue=1), 0.0
    for attempt in range(0, 100, 5):
        asked = [_ask(gate, attempt + number, now) for number in range(5)]
        assert isinstance(asked[3], Admit)
        assert isinstance(asked[4], Queue)
        for number in range(5):
            begins = now if number < 4 else now + 1.5
            gate.handle(FirstToken(attempt + number), begins + 0.5)
            if number == 3:
                for ended in range(4):
                    gate.handle(Finished(attempt + ended, 100, 100, released=True), now + 1.5)
        gate.handle(Finished(attempt + 4, 100, 100, released=True), now + 3.0)
        now += 100.0
    return gate, now


def _full_of_small_ones() -> tuple[Governor, float]:
    """Eight of 100 tokens run, each half a second later than the last, and one of them waits."""
    gate, now = _taught()
    for number in range(8):
        assert isinstance(_ask(gate, 200 + number, now, tokens=100), Admit)
    assert isinstance(_ask(gate, 208, now, tokens=100), Queue)
    return gate, now


def test_a_large_request_is_asked_back_when_several_small_ones_have_ended() -> None:
    hints_s = []
    for tokens in (100, 200, 400):
        gate, now = _full_of_small_ones()
        hints_s.append(_hint_s(gate, 300, now, tokens))
    assert hints_s[0] < hints_s[1] < hints_s[2]


def test_small_requests_that_happen_to_run_make_no_room_for_as_many_usual_ones() -> None:
    """Eight small ones run, in the memory of four usual ones: behind seven of these the next waits for one that is not there yet."""
    gate, now = _full_of_small_ones()
    hints_s = [_hint_s(gate, 300 + number, now, 200) for number in range(8)]
    assert hints_s[7] > hints_s[6] + 1.0


@pytest.mark.parametrize(("tokens", "learned"), [(100, False), (200, True)])
def test_only_room_for_a_usual_newcomer_says_that_waits_are_too_long(*, tokens: int, learned: bool) -> None:
    """A client is away; there is room for 100 tokens, or for 200."""
    gate, now = _taught()
    for number in range(3):
        assert isinstance(_ask(gate, 200 + number, now), Admit)
    assert isinstance(_ask(gate, 203, now, tokens=300), Queue)
    assert isinstance(_ask(gate, 204, now, tokens=300), Yield)
    gate.handle(ClientGone(203), now)
    if tokens < 200:
        assert isinstance(_ask(gate, 205, now, tokens=100), Admit)
    (pool,) = gate._knowledge.engines.routes.pools
    pool.overtaking.share = 0.5
    assert isinstance(_ask(gate, 206, now, tokens=100), Admit)
    assert (pool.overtaking.share < 0.5) is learned


@pytest.mark.parametrize(
    ("engine", "counted", "value", "bound"),
    [
        (replace(_ENGINE, kv_tokens=300), Counted.MEMORY, 200, 100),
        (replace(_ENGINE, prefill_tokens=150), Counted.PROMPTS, 100, 100),
        (replace(_ENGINE, max_inflight=1), None, 1, 1),
    ],
    ids=["memory", "prompts", "streams"],
)
def test_a_refusal_names_what_is_full(
    engine: EngineSettings, counted: Counted | None, value: float, bound: float
) -> None:
    gate = governor(LaneSettings("lane", deadline_s=60.0, max_queue=0), engines=(engine,))
    assert isinstance(_ask(gate, 1), Admit)
    refused = _ask(gate, 2)
    assert isinstance(refused, Yield)
    assert (refused.counted, refused.value, refused.bound) == (counted, value, bound)

"""Sessions of agents before engines whose memory is bounded: turns of live ones go on, and new ones wait where they would evict them."""

from typing import Any
from zlib import crc32

import pytest

from core.world import governor
from millgate.core.decisions import Admit, Decision, Queue, Yield
from millgate.core.events import (
    Arrived,
    ClientGone,
    EngineDown,
    EngineUp,
    Finished,
    FirstToken,
    PrefixMarks,
    Released,
    Tick,
)
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior, Settings
from millgate.core.words import Counted, DeadlineFrom, Reason

PRIOR = ServicePrior(0.01, 0.0005, 0.01, 0.0005)
LANE = LaneSettings("lane", deadline_s=60.0, deadline_from=DeadlineFrom.ATTEMPT)


def _engines(count: int, kv_tokens: int | None) -> tuple[EngineSettings, ...]:
    return tuple(EngineSettings(f"{number}", 32, kv_tokens=kv_tokens, prior=PRIOR) for number in range(count))


def _gate(count: int = 2, kv_tokens: int | None = 30_000, lane: LaneSettings = LANE) -> Governor:
    return governor(lane, engines=_engines(count, kv_tokens))


def _marks(name: str, turns: int) -> PrefixMarks:
    return tuple((crc32(f"{name} {turn}".encode()), 4_000 * (turn + 1)) for turn in range(turns))


def _arrival(attempt: int, name: str, turns: int, **fields: Any) -> Arrived:
    """Ask with messages of 1,000 tokens each."""
    return Arrived(
        attempt, prompt_bytes=4_000 * turns, max_tokens=100, marks=lambda: _marks(name, turns), **fields
    )


def _answer(gate: Governor, attempt: int, now: float) -> tuple[Decision, ...]:
    gate.handle(FirstToken(attempt), now)
    gate.handle(Finished(attempt, None, 100), now)
    return gate.handle(Released(attempt), now)


def _full(**fields: Any) -> Governor:
    """Return a gate whose two engines have one live session each, `s0` and `s1`, of 16,000 tokens; 21,000 may be live."""
    gate = _gate(**fields)
    for number in range(2):
        assert isinstance(gate.handle(_arrival(number, f"s{number}", 16, session=number + 1), 0.0)[0], Admit)
    return gate


OPENED = 100.0
"""When the two sessions of `_full_of_agents` are opened; their second turns run ten seconds later."""


def _full_of_agents(**fields: Any) -> Governor:
    """Return a gate as in `_full`, whose lane has seen 60 turns of an agent that came back after a second."""
    gate = _gate(**fields)
    for turn in range(60):
        now = OPENED - 95.0 + 1.5 * turn
        gate.handle(_arrival(1_000 + turn, "agent", 1, session=9), now)
        gate.handle(FirstToken(1_000 + turn), now + 0.5)
        _answer(gate, 1_000 + turn, now + 0.5)
    for number in range(2):
        gate.handle(_arrival(100 + number, f"s{number}", 15, session=number + 1), OPENED)
    for number in range(2):
        gate.handle(FirstToken(100 + number), OPENED + 8.0)
        _answer(gate, 100 + number, OPENED + 9.0)
    for number in range(2):
        arrival = _arrival(number, f"s{number}", 16, session=number + 1)
        assert isinstance(gate.handle(arrival, OPENED + 10.0)[0], Admit)
    return gate


def test_a_new_session_waits_while_turns_of_live_ones_go_on() -> None:
    gate = _full_of_agents()
    new = gate.handle(_arrival(10, "new", 8), OPENED + 11.0)
    (refused,) = new
    assert isinstance(refused, Yield)
    assert refused.reason is Reason.SATURATED
    assert refused.counted is Counted.SESSIONS
    assert refused.retry_after_s == pytest.approx(60.0), "no lease ends within the longest hint"

    _answer(gate, 0, OPENED + 12.0)
    (going_on,) = gate.handle(_arrival(11, "s0", 17, session=1), OPENED + 13.0)
    assert isinstance(going_on, Admit)
    assert going_on.legs[0].engine == "0"


def test_a_question_that_turns_keep_out_alone_waits_for_the_first_of_them_to_end() -> None:
    """Their sessions never come back: a context is free when its turn ends, long before any lease."""
    gate = _full()
    (queued,) = gate.handle(_arrival(10, "question", 8), 1.0)
    assert isinstance(queued, Queue)
    assert queued.expected_wait_s < 10.0

    assert [type(each) for each in _answer(gate, 0, 9.0)] == [Admit]


def test_one_that_turns_keep_out_beyond_its_time_is_told_when_the_first_of_them_ends() -> None:
    gate = _full(lane=LaneSettings("lane", deadline_s=5.0, deadline_from=DeadlineFrom.ATTEMPT))
    (refused,) = gate.handle(_arrival(10, "question", 8), 1.0)
    assert isinstance(refused, Yield)
    assert refused.counted is Counted.SESSIONS
    assert refused.retry
    assert refused.retry_after_s < 10.0


def test_where_turns_fill_the_memory_a_refusal_says_so_and_not_that_sessions_do() -> None:
    """Two contexts run, none of which has ever come back, and the question is longer than what is left beside them."""
    gate = _full(lane=LaneSettings("lane", deadline_s=60.0, max_queue=0))
    (refused,) = gate.handle(_arrival(10, "question", 15), 1.0)
    assert isinstance(refused, Yield)
    assert (refused.counted, refused.value, refused.bound) == (Counted.MEMORY, 15_100, 13_900)


@pytest.mark.parametrize("bound", [{"max_queue": 1}, {"max_queue_tokens": 10_000}])
def test_where_the_queue_is_full_a_refusal_says_so_and_not_that_sessions_are_in_the_way(
    bound: dict[str, Any],
) -> None:
    """`why` said that no session was over within ten seconds, of a request that may wait for a minute."""
    gate = _full(lane=LaneSettings("lane", deadline_s=60.0, deadline_from=DeadlineFrom.ATTEMPT, **bound))
    assert isinstance(gate.handle(_arrival(10, "question", 8), 1.0)[0], Queue)
    (refused,) = gate.handle(_arrival(11, "another", 8), 1.0)
    assert isinstance(refused, Yield)
    assert (refused.reason, refused.counted) == (Reason.QUEUE_FULL, None)
    assert refused.retry_after_s > 8.0, "no context is over before"


def test_a_question_that_needs_the_memory_of_two_turns_waits_for_both() -> None:
    gate = _gate(count=1)
    for number, end in ((0, 5.0), (1, 9.0)):
        assert isinstance(gate.handle(_arrival(number, f"s{number}", 10, session=number + 1), 0.0)[0], Admit)
        gate.handle(FirstToken(number), end)
    waits_s = []
    for attempt, turns in ((10, 12), (11, 20)):
        (queued,) = gate.handle(_arrival(attempt, f"question {turns}", turns), 9.0)
        assert isinstance(queued, Queue)
        waits_s.append(queued.expected_wait_s)
        gate.handle(ClientGone(attempt), 9.0)
    assert waits_s[1] > 2.0 * waits_s[0]


def test_a_session_whose_lease_is_over_goes_on_where_its_context_still_is() -> None:
    """Live ones have grown beyond what may be live, and would keep a new session of the same size out."""
    gate = _gate(count=1, kv_tokens=50_000)
    for attempt, now in ((0, 0.0), (1, 4.0)):
        gate.handle(_arrival(attempt, "old", 6 + attempt, session=1), now)
        _answer(gate, attempt, now + 1.0)
    gate.handle(_arrival(2, "live", 16, session=2), 30.0)
    gate.handle(_arrival(3, "live too", 5, session=3), 150.0)
    gate.handle(_arrival(4, "live too", 20, session=3), 151.0)

    assert isinstance(gate.handle(_arrival(10, "new", 8, session=4), 152.0)[0], Queue)
    (resumed,) = gate.handle(_arrival(11, "old", 8, session=1), 152.0)
    assert isinstance(resumed, Admit)
    assert resumed.candidates[0].cached_tokens > 7_000


def test_it_is_told_when_there_will_be_room() -> None:
    gate = _full_of_agents(lane=LaneSettings("lane", deadline_s=20.0, deadline_from=DeadlineFrom.ATTEMPT))
    (refused,) = gate.handle(_arrival(10, "new", 8), OPENED + 70.0)
    assert isinstance(refused, Yield)
    assert refused.retry_after_s == pytest.approx(50.0)
    assert refused.retry

    (admitted,) = gate.handle(_arrival(11, "new", 8), OPENED + 70.0 + refused.retry_after_s)
    assert isinstance(admitted, Admit)


def test_a_session_that_rests_leaves_room_as_often_as_sessions_do_not_return() -> None:
    gate = _full()
    _answer(gate, 0, 2.0)
    (admitted,) = gate.handle(_arrival(10, "new", 13), 3.0)
    assert isinstance(admitted, Admit)
    assert admitted.legs[0].engine == "0", "3,200 of its 16,000 tokens count, and 21,000 may be live"


def test_it_is_queued_where_there_is_room_within_its_time() -> None:
    gate = _full_of_agents()
    for number in range(2):
        gate.handle(FirstToken(number), OPENED + 18.0)
    queued, *_ = gate.handle(_arrival(10, "new", 8), OPENED + 70.0)
    assert isinstance(queued, Queue)
    assert queued.expected_wait_s == pytest.approx(50.0), "120 s after the last one was opened"
    gate.handle(_arrival(9, "s0", 17, session=1), OPENED + 70.5)
    decisions = _answer(gate, 0, OPENED + 71.0)
    assert [each.attempt for each in decisions] == [9], "it stands in no turn's way"

    assert gate.next_wake() == pytest.approx(OPENED + 120.0)
    decisions = gate.handle(Tick(), OPENED + 120.0)
    assert [type(each) for each in decisions] == [Admit]


def test_a_prompt_beyond_the_memory_of_the_one_engine_with_room_for_a_session_is_not_sent_there() -> None:
    large, small = (
        EngineSettings(name, 32, kv_tokens=kv_tokens, prior=PRIOR)
        for name, kv_tokens in (("large", 30_000), ("small", 6_000))
    )
    gate = governor(LANE, engines=(large, small))
    (opened,) = gate.handle(_arrival(0, "s0", 16, session=1), 0.0)
    assert isinstance(opened, Admit)

    assert not isinstance(gate.handle(_arrival(1, "new", 8), 1.0)[0], Admit)


def test_what_names_no_session_and_has_no_prefix_passes() -> None:
    gate = _full()
    (decision,) = gate.handle(Arrived(10, prompt_bytes=4_000, max_tokens=100), 1.0)
    assert isinstance(decision, Admit)


def test_an_engine_whose_memory_is_not_known_protects_nothing() -> None:
    gate = _full(kv_tokens=None)
    (decision,) = gate.handle(_arrival(10, "new", 80), 1.0)
    assert isinstance(decision, Admit)


def test_clients_that_leave_and_turns_that_are_queued_leave_no_session_behind() -> None:
    gate = _full()
    for number in range(2):
        gate.handle(ClientGone(number), 1.0)
        gate.handle(Released(number), 1.0)
    gate.handle(Tick(), 1_000.0)
    snapshot = gate.snapshot(1_000.0)
    assert (snapshot.live_sessions, snapshot.working_set_share) == (0, 0.0)


def test_an_engine_that_restarts_frees_what_rested_there() -> None:
    gate = _full()
    _answer(gate, 0, 2.0)
    assert gate.snapshot(2.0).live_sessions == 2
    gate.handle(EngineDown("0"), 3.0)
    gate.handle(EngineUp("0"), 4.0)
    assert gate.snapshot(4.0).live_sessions == 1
    (decision,) = gate.handle(_arrival(10, "new", 12), 5.0)
    assert isinstance(decision, Admit)
    assert decision.legs[0].engine == "0"


def test_a_reload_keeps_live_sessions_and_forgets_those_of_an_engine_that_is_gone() -> None:
    gate = _full()
    for number in range(2):
        _answer(gate, number, 2.0)
    gate.reconfigure(Settings((LANE,), _engines(2, 30_000)), 3.0)
    assert gate.snapshot(3.0).live_sessions == 2
    gate.reconfigure(Settings((LANE,), _engines(1, 30_000)), 4.0)
    assert gate.snapshot(4.0).live_sessions == 1
    (turn,) = gate.handle(_arrival(11, "s0", 17, session=1), 5.0)
    assert isinstance(turn, Admit)


def test_the_snapshot_says_what_is_live() -> None:
    snapshot = _full().snapshot(1.0)
    assert snapshot.live_sessions == 2
    assert snapshot.working_set_share == pytest.approx(32_000 / 60_000)


def test_two_turns_that_were_queued_before_their_session_had_begun_are_turns_of_one() -> None:
    gate = governor(LANE, engines=(EngineSettings("0", 1, kv_tokens=30_000, prior=PRIOR),))
    gate.handle(_arrival(0, "other", 2, session=2), 0.0)
    for attempt in (1, 2):
        assert isinstance(gate.handle(_arrival(attempt, "new", 3, session=1), 0.5)[0], Queue)

    assert isinstance(_answer(gate, 0, 1.0)[-1], Admit)
    assert isinstance(_answer(gate, 1, 2.0)[-1], Admit)
    _answer(gate, 2, 3.0)

    assert gate._knowledge.engines.working_sets.sessions == 2


def _branch(attempt: int, name: str, turns: int, session: int) -> Arrived:
    """Ask with a conversation whose first six messages are those of `s0`."""
    marks = (*_marks("s0", 6), *_marks(name, turns)[6:])
    return _arrival(attempt, name, turns, session=session)._replace(marks=lambda: marks)


def test_a_fork_under_its_own_name_is_a_session_of_its_own_once_it_goes_on() -> None:
    """A subagent, or one of several tries from one prompt: it goes on while the gate is full, also after its origin has gone on."""
    gate = _gate(count=1, kv_tokens=60_000)
    arrivals = (_branch(0, "s0", 6, 1), _branch(1, "fork", 7, 2), _branch(2, "s0", 7, 1))
    for now, arrival in zip((0.0, 4.0, 8.0), arrivals, strict=True):
        gate.handle(arrival, now)
        _answer(gate, arrival.attempt, now + (0.5 if now else 3.0))
    assert gate.snapshot(12.0).live_sessions == 1, "it may be the same session under another name"
    gate.handle(_arrival(3, "large", 46, session=3), 12.0)
    assert isinstance(gate.handle(_arrival(10, "new", 8, session=5), 13.0)[0], Queue)

    (going_on,) = gate.handle(_branch(11, "fork", 8, 2), 13.0)
    assert isinstance(going_on, Admit)
    assert gate.snapshot(13.0).live_sessions == 3

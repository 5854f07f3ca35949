"""Several engines that keep what they have read: a conversation returns to the engine that holds it, while that is the cheapest."""

from functools import partial
from typing import Any
from zlib import crc32

import pytest

from core.world import governor
from millgate.core.decisions import Admit, Decision, Queue
from millgate.core.events import (
    Arrived,
    EngineDown,
    EngineUp,
    Failed,
    Finished,
    FirstToken,
    PrefixMarks,
    Released,
    Tick,
)
from millgate.core.governor import Governor
from millgate.core.routing.working_set import MOST_PASSED_OVER
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior
from millgate.core.words import FailureKind, Sent

# A tenth of a second of reading for each thousand tokens, and 10 ms a token for an answer alone.
PRIOR = ServicePrior(0.01, 0.0001, 0.01, 0.0005)


def _gate(count: int = 3, streams: int = 32, **fields: Any) -> Governor:
    engines = tuple(EngineSettings(f"{number}", streams, prior=PRIOR, **fields) for number in range(count))
    return governor(LaneSettings("lane", deadline_s=60.0), engines=engines)


def _marks(name: str, turns: int) -> PrefixMarks:
    """Return the marks of a conversation whose messages have 1,000 tokens each, in bytes."""
    return tuple((crc32(f"{name} {turn}".encode()), 4_000 * (turn + 1)) for turn in range(turns))


def _ask(gate: Governor, attempt: int, name: str, turns: int, now: float = 0.0) -> Decision:
    return gate.handle(_arrival(attempt, name, turns), now)[0]


def _arrival(attempt: int, name: str, turns: int) -> Arrived:
    return Arrived(attempt, prompt_bytes=4_000 * turns, max_tokens=100, marks=lambda: _marks(name, turns))


def _answer(gate: Governor, attempt: int, now: float, cached_tokens: int | None = None) -> None:
    gate.handle(FirstToken(attempt), now)
    gate.handle(Finished(attempt, None, 100, cached_tokens), now)
    gate.handle(Released(attempt), now)


def _engine(decision: Decision) -> str:
    assert isinstance(decision, Admit)
    return decision.legs[0].engine


def test_the_next_turn_goes_where_the_last_one_was_read() -> None:
    gate = _gate()
    assert [_engine(_ask(gate, attempt, str(attempt), 8)) for attempt in range(3)] == ["0", "1", "2"]
    for attempt in range(3):
        _answer(gate, attempt, 1.0)

    for attempt, name in ((10, "2"), (11, "0"), (12, "1")):
        decision = _ask(gate, attempt, name, 9, 2.0)
        assert _engine(decision) == name
        assert isinstance(decision, Admit)
        assert decision.legs[0].prompt_tokens < 1_100, "what is held is not read again"
        assert decision.legs[0].kv_tokens > 9_000, "and takes memory all the same"


def test_siblings_of_a_burst_find_each_other_before_the_first_answer() -> None:
    gate = _gate()
    placed = {_engine(_ask(gate, attempt, "burst", 8)) for attempt in range(4)}

    assert placed == {"0"}


def test_a_common_beginning_is_no_affinity() -> None:
    """All conversations share a system prompt: engines that all hold it get equal numbers of them."""
    gate = _gate()
    system = _marks("system", 1)
    placed = []
    for attempt in range(30):
        own = tuple((key, size + 4_000) for key, size in _marks(str(attempt), 6))
        arrival = Arrived(attempt, prompt_bytes=28_000, max_tokens=100, marks=partial(tuple, system + own))
        placed.append(_engine(gate.handle(arrival, 0.0)[0]))

    assert [placed.count(name) for name in "012"] == [10, 10, 10]


def test_a_holder_that_is_far_busier_loses_the_conversation() -> None:
    gate = _gate(count=2)
    assert _engine(_ask(gate, 1, "a", 2)) == "0"
    _answer(gate, 1, 0.5)
    for attempt in range(100, 125):
        arrival = Arrived(attempt, prompt_bytes=40_000, max_tokens=400, engine="0")
        assert _engine(gate.handle(arrival, 1.0)[0]) == "0"

    assert _engine(_ask(gate, 2, "a", 3, 1.0)) == "1"


def test_an_engine_that_comes_back_holds_nothing() -> None:
    gate = _gate(count=2)
    _ask(gate, 1, "a", 8)
    _answer(gate, 1, 1.0)
    gate.handle(EngineDown("0"), 2.0)
    assert _engine(_ask(gate, 2, "a", 9, 2.0)) == "1"
    _answer(gate, 2, 3.0)

    gate.handle(EngineUp("0"), 4.0)
    assert _engine(_ask(gate, 3, "a", 10, 4.0)) == "1"


def test_first_tokens_are_predicted_and_learned_by_what_is_read() -> None:
    gate = _gate(count=1)
    for turns in range(1, 30):
        decision = _ask(gate, turns, "a", turns, 10.0 * turns)
        assert isinstance(decision, Admit)
        assert decision.expected_ttft_s == pytest.approx(0.11, rel=0.2), "1,000 tokens are new each time"
        gate.handle(FirstToken(turns), 10.0 * turns + 0.11)
        gate.handle(Finished(turns, 1_000 * turns, 1), 10.0 * turns + 1.0)
        gate.handle(Released(turns), 10.0 * turns + 1.0)


def test_a_queued_request_is_read_where_it_is_held_when_it_starts() -> None:
    """It was held nowhere when it came; its sibling has been read since."""
    gate = _gate(count=2, streams=1)
    for attempt in (1, 2):
        _ask(gate, attempt, "a" if attempt == 2 else "x", 8)
    _ask(gate, 3, "a", 9)
    decisions = [*gate.handle(FirstToken(2), 1.0), *gate.handle(Finished(2, 8_000, 100), 1.0)]
    decisions += gate.handle(Released(2), 1.0)

    (admitted,) = [each for each in decisions if isinstance(each, Admit)]
    assert _engine(admitted) == "1"
    assert admitted.legs[0].prompt_tokens < 1_100


def _full_holder(**lane: Any) -> Governor:
    """Return a gate of two engines of one stream: engine 0 has read a long conversation, and is full with its sibling."""
    engines = tuple(EngineSettings(f"{number}", 1, prior=PRIOR) for number in range(2))
    gate = governor(LaneSettings("lane", deadline_s=60.0, **lane), engines=engines)
    _ask(gate, 1, "a", 100)
    _answer(gate, 1, 1.0)
    assert _engine(_ask(gate, 2, "a", 100, 2.0)) == "0"
    return gate


def test_a_request_waits_for_the_full_engine_that_holds_its_prompt() -> None:
    gate = _full_holder()
    queued = _ask(gate, 3, "a", 101, 2.0)
    assert isinstance(queued, Queue), "10 s of reading elsewhere, or 1 s of waiting"
    now_possible, waited_for = queued.candidates
    assert (now_possible.engine, waited_for.engine) == ("1", "0")
    assert waited_for.cached_tokens > now_possible.cached_tokens == 0
    assert waited_for.cost_s < now_possible.cost_s
    assert 2.0 < queued.better_until < 2.0 + 60.0 / 2.0

    gate.handle(FirstToken(2), 2.1)
    gate.handle(Finished(2, None, 100), 3.0)
    (admitted,) = gate.handle(Released(2), 3.0)
    assert _engine(admitted) == "0"
    assert isinstance(admitted, Admit)
    assert admitted.legs[0].prompt_tokens < 1_200


def test_a_later_request_takes_the_room_that_it_leaves() -> None:
    gate = _full_holder()
    _ask(gate, 3, "a", 101, 2.0)

    decisions = gate.handle(Arrived(4, prompt_bytes=4_000, max_tokens=100), 2.5)
    assert [_engine(each) for each in decisions if isinstance(each, Admit)] == ["1"]


def test_it_waits_no_longer_than_half_of_its_time_then_goes_elsewhere() -> None:
    gate = _full_holder()
    _ask(gate, 3, "a", 101, 2.0)
    wake_at = gate.next_wake()
    assert wake_at is not None
    assert 2.0 < wake_at < 2.0 + 60.0 / 2.0

    assert gate.handle(Tick(), wake_at - 0.01) == ()
    (admitted,) = gate.handle(Tick(), wake_at)
    assert _engine(admitted) == "1"


def test_an_explanation_names_the_engines_that_could_take_a_request_the_one_taken_first() -> None:
    gate = _gate()
    gate.handle(Arrived(1, prompt_bytes=4_000, max_tokens=100), 0.0)

    told = gate.explain(Arrived(2, prompt_bytes=4_000, max_tokens=100), 0.0)
    assert [each.engine for each in told.candidates] == ["1", "2", "0"]
    assert told.candidates[0].cost_s == told.candidates[1].cost_s < told.candidates[2].cost_s
    assert _gate(count=1).explain(Arrived(3), 0.0).candidates == ()


def test_an_explanation_of_a_prompt_that_an_engine_holds_has_the_candidates_of_its_decision() -> None:
    told = _full_holder().explain(_arrival(3, "a", 101), 2.0)
    assert isinstance(told.decision, Queue)
    assert told.candidates == told.decision.candidates != ()


def test_a_lane_that_bounds_overtakes_or_queues_nothing_takes_the_room_at_once() -> None:
    for gate in (_full_holder(order="short_first", max_overtakes=3), _full_holder(max_queue=0)):
        assert _engine(_ask(gate, 3, "a", 101, 2.0)) == "1"


def test_at_most_so_many_are_passed_over_and_the_next_takes_the_room() -> None:
    gate = _full_holder()
    for attempt in range(MOST_PASSED_OVER):
        assert isinstance(_ask(gate, 10 + attempt, "a", 101, 2.0), Queue)

    decisions = gate.handle(_arrival(99, "a", 101), 2.0)
    assert [_engine(each) for each in decisions if isinstance(each, Admit)] == ["1"]


def test_an_admission_tells_its_candidates_the_one_taken_first() -> None:
    gate = _gate()
    fresh = _ask(gate, 1, "a", 8)
    assert isinstance(fresh, Admit)
    assert (fresh.candidates, fresh.cached_tokens) == ((), None)
    _answer(gate, 1, 1.0)

    decision = _ask(gate, 2, "a", 9, 2.0)
    assert isinstance(decision, Admit)
    taken, other = decision.candidates
    assert (taken.engine, taken.cached_tokens) == ("0", decision.cached_tokens)
    assert decision.cached_tokens == pytest.approx(8_100, abs=100)
    assert (other.cached_tokens, other.prompt_tokens) == (0, taken.prompt_tokens)
    assert 0.0 < taken.cost_s < other.cost_s


@pytest.mark.parametrize(
    "failure",
    [
        {"kind": FailureKind.STATUS, "blames_request": True},
        {"kind": FailureKind.REFUSED},
        {"kind": FailureKind.CONNECT},
    ],
)
def test_what_an_engine_has_refused_unread_it_has_yet_to_read(failure: dict[str, Any]) -> None:
    """Claude Code asks vLLM for a thinking budget that it does not take: 400, and its next try has the same 28,000 tokens."""
    gate = _gate(1)
    _ask(gate, 1, "a", 2)
    _answer(gate, 1, 1.0)
    _ask(gate, 2, "a", 8, 2.0)
    gate.handle(Failed(2, sent=Sent.REQUEST, hint_s=None, **failure), 2.1)
    gate.handle(Released(2), 2.1)

    again = _ask(gate, 3, "a", 8, 3.0)

    assert isinstance(again, Admit)
    assert again.cached_tokens == pytest.approx(2_000, rel=0.1)


def test_what_others_go_on_from_is_held_though_one_was_refused() -> None:
    gate = _gate(1)
    _ask(gate, 1, "a", 4)
    _ask(gate, 2, "a", 8, 0.1)
    gate.handle(Failed(1, FailureKind.REFUSED, Sent.REQUEST, None), 0.2)
    gate.handle(Released(1), 0.2)

    again = _ask(gate, 3, "a", 4, 3.0)

    assert isinstance(again, Admit)
    assert (again.cached_tokens or 0) > 3_900

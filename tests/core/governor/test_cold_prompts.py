"""Long prompts that no engine holds, among sessions: engines gather them, and sessions go where few are read."""

from random import Random
from typing import Any
from zlib import crc32

import pytest

from core.world import governor
from millgate.core.decisions import Admit, Decision, Queue
from millgate.core.events import Arrived, EngineDown, EngineUp, Finished, FirstToken, PrefixMarks, Released
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior

# A tenth of a second of reading for each thousand tokens: a cold prompt is read for ten.
PRIOR = ServicePrior(0.01, 0.0001, 0.01, 0.0005)
COLD = 100


def _gate(count: int = 4, deadline_s: float = 60.0) -> Governor:
    engines = tuple(EngineSettings(f"{number}", 32, prior=PRIOR) for number in range(count))
    return governor(LaneSettings("lane", deadline_s=deadline_s), engines=engines)


def _arrival(attempt: int, name: str, thousands: int, **fields: Any) -> Arrived:
    """Ask with messages of 1,000 tokens each."""
    marks: PrefixMarks = tuple(
        (crc32(f"{name} {each}".encode()), 4_000 * (each + 1)) for each in range(thousands)
    )
    return Arrived(attempt, prompt_bytes=4_000 * thousands, max_tokens=100, marks=lambda: marks, **fields)


def _engine(decision: Decision) -> str:
    assert isinstance(decision, Admit)
    return decision.legs[0].engine


class _Day:
    """Requests one after the other, each answered before the next."""

    def __init__(self, gate: Governor) -> None:
        self.gate, self.now, self.asked = gate, 0.0, 0

    def asks(self, name: str, thousands: int, **fields: Any) -> str:
        self.asked += 1
        self.now += 12.0
        arrival = _arrival(self.asked, name, thousands, **fields)
        decision = self.gate.handle(arrival, self.now)[0]
        assert isinstance(decision, Admit)
        reading_s = PRIOR.ttft_base_s + PRIOR.ttft_per_token_s * decision.legs[0].prompt_tokens
        self.gate.handle(FirstToken(self.asked), self.now + reading_s)
        self.gate.handle(Finished(self.asked, None, 100), self.now + 11.0)
        self.gate.handle(Released(self.asked), self.now + 11.0)
        return _engine(decision)


def _with_sessions() -> tuple[_Day, list[str]]:
    """Return a day on which three of four engines have a session, and where these are."""
    day = _Day(_gate())
    opened = [day.asks(f"s{number}", 20, session=number + 1) for number in range(3)]
    for turn in range(3):
        for number in range(3):
            assert day.asks(f"s{number}", 21 + turn, session=number + 1) == opened[number]
    return day, opened


def test_cold_prompts_gather_where_the_fewest_turns_come() -> None:
    """Four engines have a session each, and that of the last one has long been quiet."""
    day = _Day(_gate())
    opened = [day.asks(f"s{number}", 20, session=number + 1) for number in range(4)]
    assert len(set(opened)) == 4
    for turn in range(3):
        for number in range(3):
            day.asks(f"s{number}", 21 + turn, session=number + 1)

    assert {day.asks(f"cold {number}", COLD) for number in range(6)} == {opened[3]}


def test_a_new_session_goes_where_no_cold_prompts_are_read() -> None:
    day, opened = _with_sessions()
    cold = {day.asks(f"cold {number}", COLD) for number in range(6)}

    assert day.asks("new", 20, session=9) in set(opened)
    assert day.asks("cold again", COLD) in cold


def test_a_new_session_goes_where_the_fewest_contexts_are_though_their_leases_are_over() -> None:
    day = _Day(_gate(2))
    assert day.asks("s", 60, session=1) == "0"
    day.now += 200.0

    assert day.asks("new", 20, session=2) == "1"


@pytest.mark.parametrize(("thousands", "engine"), [(9, "0"), (COLD, "1")])
def test_a_session_leaves_the_engine_where_its_turns_wait_longer_than_its_context_takes_to_read(
    thousands: int, engine: str
) -> None:
    day = _Day(_gate(2))
    assert day.asks("agent", 20, session=1) == "0"
    day.gate.handle(EngineDown("1"), day.now)
    day.asks("cold", thousands)
    day.gate.handle(EngineUp("1"), day.now)

    assert [day.asks("agent", 21 + turn, session=1) for turn in range(3)] == [engine] * 3


def test_the_first_prompt_of_a_session_without_a_name_makes_no_turn_of_it_leave() -> None:
    """It counts as a cold one until a second turn goes on from it."""
    day = _Day(_gate(2))

    assert {day.asks("agent", COLD + turn) for turn in range(6)} == {"0"}
    encounters = day.gate._knowledge.engines.working_sets.encounters
    assert encounters.waits_s(0, 0.0, 1, day.now) == pytest.approx(0.0, abs=1e-9)


def test_a_session_without_a_name_leaves_too_with_its_second_turn() -> None:
    """Its first prompt went where cold ones are read, as one of none; the later it leaves, the more is read again."""
    day = _Day(_gate(2))
    day.gate.handle(EngineDown("1"), day.now)
    day.asks("agent", 20)
    day.asks("cold", COLD)
    day.gate.handle(EngineUp("1"), day.now)

    assert [day.asks("agent", 21 + turn) for turn in range(3)] == ["1"] * 3


def test_a_cold_prompt_that_would_wait_for_another_goes_on() -> None:
    day, opened = _with_sessions()
    day.now += 12.0
    first, second = [
        _engine(day.gate.handle(_arrival(1_000 + number, f"cold {number}", COLD), day.now)[0])
        for number in range(2)
    ]
    assert first not in opened
    assert second in opened


@pytest.mark.parametrize(("idle", "calm", "busy"), [(0, 1, 2), (1, 2, 0), (2, 0, 1)])
def test_a_cold_prompt_that_would_be_late_goes_to_the_cheapest_engine_where_it_is_in_time(
    idle: int, calm: int, busy: int
) -> None:
    gate = _gate(3, deadline_s=15.0)
    for attempt, number in enumerate(6 * (calm,) + 12 * (busy,)):
        gate.handle(Arrived(attempt, prompt_bytes=400, max_tokens=1_000, engine=f"{number}"), 0.0)
        gate.handle(FirstToken(attempt), 0.015)

    told = [
        _engine(gate.handle(_arrival(1_000 + number, f"cold {number}", COLD), 1.0)[0]) for number in range(2)
    ]
    assert told == [f"{idle}", f"{calm}"]


def _metered_with_sessions(deadline_s: float) -> tuple[Governor, float]:
    """Return a gate with the meter of prompts, before two engines; one reads a cold prompt, and on the other agents have many turns."""
    engines = tuple(
        [EngineSettings(f"{number}", 32, prior=PRIOR, prefill_tokens=16_384) for number in (0, 1)]
    )
    day = _Day(governor(LaneSettings("lane", deadline_s=deadline_s), engines=engines))
    assert {day.asks("agent", 20 + turn, session=1) for turn in range(8)} == {"0"}
    assert _engine(day.gate.handle(_arrival(100, "cold", COLD), day.now + 12.0)[0]) == "1"
    return day.gate, day.now + 12.0


def test_a_cold_prompt_waits_for_the_engine_that_reads_another_one_rather_than_hold_up_agents() -> None:
    gate, now = _metered_with_sessions(60.0)

    queued = gate.handle(_arrival(101, "cold too", COLD), now)[0]
    assert isinstance(queued, Queue)
    assert [each.engine for each in queued.candidates] == ["0", "1"]
    assert _engine(gate.handle(_arrival(102, "agent", 28, session=1), now + 1.0)[0]) == "0", "others pass it"
    begun = gate.handle(FirstToken(100), now + 10.0)
    assert [(each.attempt, _engine(each)) for each in begun] == [(101, "1")]


def test_a_cold_prompt_that_has_no_time_to_wait_goes_where_agents_are() -> None:
    gate, now = _metered_with_sessions(15.0)

    assert _engine(gate.handle(_arrival(101, "cold too", COLD), now)[0]) == "0"


def test_a_cold_prompt_passes_a_full_engine_by_that_would_be_cheaper() -> None:
    engines = (EngineSettings("small", 1, prior=PRIOR), EngineSettings("large", 8, prior=PRIOR))
    gate = governor(LaneSettings("lane", deadline_s=60.0), engines=engines)
    for attempt, name in enumerate(("small", "large", "large", "large")):
        gate.handle(Arrived(attempt, prompt_bytes=400, max_tokens=100, engine=name), 0.0)
        gate.handle(FirstToken(attempt), 0.1)

    told = gate.explain(_arrival(9, "cold", COLD), 1.0)
    costs = {each.engine: each.cost_s for each in told.candidates}
    assert costs["small"] < costs["large"]
    assert told.engine == "large"


def test_explain_names_the_engine_that_a_cold_prompt_then_gets() -> None:
    day, _ = _with_sessions()
    day.asks("cold", COLD)
    day.now += 12.0
    arrival = _arrival(1_000, "cold again", COLD)
    told = day.gate.explain(arrival, day.now).decision

    assert told == day.gate.handle(arrival, day.now)[0]


@pytest.mark.parametrize("seed", range(20))
def test_a_long_prompt_goes_where_it_costs_least_of_the_engines_with_room(seed: int) -> None:
    dice, answering = Random(seed), list[int]()
    engines = tuple(
        EngineSettings(f"{streams}", streams, prior=PRIOR, kv_tokens=2_000_000) for streams in range(1, 6)
    )
    gate = governor(LaneSettings("lane", deadline_s=60.0, max_queue=0), engines=engines)
    for attempt in range(1, 60):
        session, now = dice.choice((None, attempt % 7 + 1)), 10.0 * attempt
        arrival = _arrival(attempt, f"{session or -attempt}", dice.randrange(1, 60), session=session)
        decision = gate.handle(arrival, now)[0]
        if isinstance(decision, Admit):
            gate.handle(FirstToken(attempt), now + PRIOR.ttft_per_token_s * decision.legs[0].prompt_tokens)
            answering.append(attempt)
        for _ in range(dice.randrange(len(answering) - 3, len(answering)) if len(answering) > 4 else 0):
            over = answering.pop(dice.randrange(len(answering)))
            gate.handle(Finished(over, None, 100), now + 9.0)
            gate.handle(Released(over), now + 9.0)

    told = gate.explain(_arrival(100, "cold", COLD), 600.0)
    costs = {each.engine: each.cost_s for each in told.candidates}
    roomy = [each.name for each in gate.snapshot(600.0).engines if each.running < each.limit]
    assert len(costs) == len(engines), "as many as are ever compared"
    assert told.engine == min(roomy, key=costs.__getitem__, default=None)

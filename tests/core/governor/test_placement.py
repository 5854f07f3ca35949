"""Several engines: who takes the next request."""

from collections import Counter
from dataclasses import replace
from math import inf
from random import Random
from typing import Any

from core.world import Client, World, governor, steady_prior
from millgate.core.decisions import Admit, Decision, Queue, Yield
from millgate.core.events import Arrived, EngineDown, EngineUp, Finished, FirstToken, Released, Tick
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior
from millgate.observe.explanation import sentence


class Placed(World):
    """A world that notes on which engines answers began, and how many ran there at most."""

    def __init__(self, gate: Governor) -> None:
        super().__init__(gate)
        self.begun, self.most_on = Counter[str](), Counter[str]()

    def _do(self, decision: Decision) -> None:
        if isinstance(decision, Admit):
            self.begun[_engine(decision)] += 1
            for engine in self.gate.snapshot(self.now).engines:
                self.most_on[engine.name] = max(self.most_on[engine.name], engine.running)
        super()._do(decision)


def _gate(*engines: EngineSettings, deadline_s: float = 60.0) -> Governor:
    return governor(LaneSettings("lane", deadline_s=deadline_s), engines=engines)


def _equal(count: int, streams: int = 100) -> tuple[EngineSettings, ...]:
    return tuple(EngineSettings(f"{number}", streams, prior=steady_prior(2.0)) for number in range(count))


def _ask(gate: Governor, attempt: int, now: float = 0.0, **fields: Any) -> Decision:
    return gate.handle(Arrived(attempt, prompt_bytes=400, max_tokens=100)._replace(**fields), now)[0]


def _engine(decision: Decision) -> str:
    assert isinstance(decision, Admit)
    return decision.legs[0].engine


def test_equal_engines_are_given_equal_numbers_in_the_order_of_their_names() -> None:
    gate = _gate(*_equal(4))
    placed = [_engine(_ask(gate, attempt)) for attempt in range(40)]

    assert placed[:4] == ["0", "1", "2", "3"]
    assert set(Counter(placed).values()) == {10}


def test_learned_speeds_that_differ_by_a_hair_draw_no_crowd() -> None:
    """The second engine answers 2 % sooner each time; it is not given all of the work for that."""
    gate = _gate(*_equal(2))
    now, peaks, running = 0.0, Counter[str](), Counter[str]()
    waiting: list[tuple[float, int, str]] = []
    for attempt in range(400):
        now += 0.1
        for due, number, name in [each for each in waiting if each[0] <= now]:
            gate.handle(Finished(number, 100, 100), due)
            gate.handle(Released(number), due)
            running[name] -= 1
        waiting = [each for each in waiting if each[0] > now]
        name = _engine(_ask(gate, attempt, now))
        gate.handle(FirstToken(attempt), now + 0.001)
        running[name] += 1
        peaks[name] = max(peaks[name], running[name])
        waiting.append((now + (2.0 if name == "0" else 1.96), attempt, name))
    assert abs(peaks["0"] - peaks["1"]) <= 2


def test_a_deadline_that_the_cheapest_misses_goes_to_the_soonest() -> None:
    """One long prompt is being read by the engine without other work; a busy one could answer at once."""
    prior = ServicePrior(0.1, 0.001, 0.0001, 0.0)
    gate = _gate(*(EngineSettings(name, 100, prior=prior) for name in ("a", "b")), deadline_s=5.0)
    for attempt in range(60):
        _ask(gate, attempt)
        gate.handle(FirstToken(attempt), 0.1)
    for attempt in range(0, 60, 2):
        gate.handle(Finished(attempt, 100, 100), 0.2)
        gate.handle(Released(attempt), 0.2)
    assert _engine(_ask(gate, 100, 0.3, prompt_bytes=8_000)) == "a"

    assert _engine(_ask(gate, 101, 0.3, time_allowed_s=1.0)) == "b"
    assert isinstance(_ask(gate, 102, 0.3, time_allowed_s=0.01), Yield)


def test_an_engine_that_is_full_down_or_of_another_model_is_passed_over() -> None:
    engines = (*_equal(2, streams=1), EngineSettings("other", 9, models=("other",), prior=steady_prior(0.5)))
    gate = _gate(*engines)

    assert _engine(_ask(gate, 1, model="any")) == "0"
    assert _engine(_ask(gate, 2, model="any")) == "1"
    gate.handle(Finished(2, 100, 100), 2.0)
    gate.handle(Released(2), 2.0)
    gate.handle(EngineDown("1"), 2.0)
    assert not isinstance(_ask(gate, 3, 2.0, model="any", max_wait_s=0.0), Admit)
    gate.handle(EngineUp("1"), 3.0)
    assert _engine(_ask(gate, 4, 3.0, model="any")) == "1"


def test_a_reservation_that_the_cheapest_has_no_room_for_goes_elsewhere() -> None:
    engines = tuple(
        EngineSettings(name, 9, kv_tokens=kv_tokens, prior=steady_prior(2.0))
        for name, kv_tokens in (("small", 500), ("large", 5_000))
    )
    gate = _gate(*engines)

    assert _engine(_ask(gate, 1)) == "small"
    assert _engine(_ask(gate, 2)) == "large"
    assert _engine(_ask(gate, 3, max_tokens=400)) == "large"


def _own_and_overflow(streams: int = 2, deadline_s: float = 60.0) -> Governor:
    """One engine of the house, and an account that answers four times as soon and is named first."""
    own = EngineSettings("own", streams, prior=ServicePrior(0.1, 0.001, 0.02, 0.0))
    account = EngineSettings("account", 9, prior=ServicePrior(0.1, 0.0, 0.005, 0.0), overflow=True)
    return _gate(account, own, deadline_s=deadline_s)


def test_an_engine_for_overflow_gets_what_the_others_have_no_room_for_and_nothing_else() -> None:
    gate = _own_and_overflow()

    assert "overflow" not in sentence(_ask(gate, 0), 0.0)
    assert [_engine(_ask(gate, attempt)) for attempt in range(1, 4)] == ["own", "account", "account"]
    gate.handle(Finished(0, 100, 100), 2.0)
    gate.handle(Released(0), 2.0)
    assert [_engine(_ask(gate, attempt, 2.0)) for attempt in (4, 5)] == ["own", "account"]
    gate.handle(EngineDown("own"), 3.0)
    beyond = _ask(gate, 6, 3.0)
    assert _engine(beyond) == "account"
    assert "; for overflow: no other engine had room for it in time" in sentence(beyond, 3.0)


def test_an_engine_for_overflow_gets_what_would_be_late_on_the_others_and_is_in_time_there() -> None:
    gate = _own_and_overflow(streams=9, deadline_s=5.0)
    assert _engine(_ask(gate, 1, prompt_bytes=12_000)) == "own"

    assert _engine(_ask(gate, 2, time_allowed_s=1.0)) == "account"
    assert _engine(_ask(gate, 3)) == "own"
    assert isinstance(_ask(gate, 4, time_allowed_s=0.01), Yield)


def test_a_lane_that_leaves_overflow_to_others_waits_for_the_other_engines_and_stops_no_lane_that_does_not() -> (
    None
):
    own = EngineSettings("own", 2, models=("small",), prior=steady_prior(2.0))
    account = EngineSettings("account", 9, models=("small",), prior=steady_prior(1.0), overflow=True)
    only = EngineSettings("only", 9, models=("large",), prior=steady_prior(1.0), overflow=True)
    lanes = (
        LaneSettings("people", deadline_s=60.0),
        LaneSettings("batch", deadline_s=600.0, overflow_after_s=inf),
    )
    gate = governor(*lanes, engines=(account, own, only))

    assert [_engine(_ask(gate, attempt, lane="batch", model="small")) for attempt in range(2)] == [
        "own",
        "own",
    ]
    assert [type(_ask(gate, attempt, lane="batch", model="small")) for attempt in range(2, 40)] == [
        Queue
    ] * 38
    assert [_engine(_ask(gate, attempt, lane="people", model="small")) for attempt in range(40, 43)] == [
        "account"
    ] * 3
    assert _engine(_ask(gate, 43, lane="batch", model="large")) == "only", "it has no other engine"
    assert gate.snapshot(0.0).lanes[0].expected_wait_s == 0.0
    gate.handle(Finished(0, 100, 100), 2.0)
    assert [(type(each), each.attempt) for each in gate.handle(Released(0), 2.0)] == [(Admit, 2)]
    gate.handle(EngineDown("own"), 3.0)
    assert isinstance(_ask(gate, 44, 3.0, lane="batch", model="small"), Yield), (
        "no engine of its own is there"
    )
    assert _engine(_ask(gate, 45, 3.0, lane="people", model="small")) == "account"


def test_people_who_wait_a_little_get_what_batch_work_leaves_and_not_the_engine_for_overflow() -> None:
    """Batch work fills the engine of the house. Who goes elsewhere at once leaves all that comes free to it, and pays for most answers."""

    def beyond(after_s: float) -> int:
        own, account = (
            EngineSettings(name, streams, prior=steady_prior(4.0))
            for name, streams in (("own", 8), ("account", 99))
        )
        people = LaneSettings("people", overflow_after_s=after_s)
        batch = LaneSettings("batch", deadline_s=43_200.0, band=1, overflow_after_s=inf)
        world = Placed(governor(people, batch, engines=(own, replace(account, overflow=True))))
        dice = Random(7)
        for number in range(200):
            world.come(Client(number, dice.uniform(2.0, 6.0), lane="batch", body=number), 0.0)
        for number in range(200, 300):
            world.come(
                Client(number, dice.uniform(2.0, 6.0), lane="people", body=number), 10.0 + number - 200
            )
        world.run(110.0)
        assert world.most_on["own"] == 8
        return world.begun["account"]

    at_once, after_two_s = beyond(0.0), beyond(2.0)
    assert at_once > 80
    assert after_two_s < 10


def test_a_request_that_waits_goes_to_the_engine_for_overflow_when_its_time_is_over() -> None:
    own = EngineSettings("own", 1, prior=steady_prior(5.0))
    account = EngineSettings("account", 9, prior=steady_prior(4.0), overflow=True)
    gate = governor(LaneSettings("lane", overflow_after_s=2.0), engines=(own, account))
    _ask(gate, 1)

    queued = _ask(gate, 2, 1.0)

    assert "waits for another engine than those with room, 2.0 s at most" in sentence(queued, 1.0)
    assert gate.next_wake() == 3.0
    assert [_engine(each) for each in gate.handle(Tick(), 3.0)] == ["account"]
    assert _engine(_ask(gate, 3, 3.0, max_wait_s=0.0)) == "account", "it may not wait"
    gate.handle(EngineDown("own"), 3.0)
    assert _engine(_ask(gate, 4, 3.0)) == "account", "nothing will come free"


def test_engines_that_are_all_for_overflow_are_as_any_others() -> None:
    engines = tuple(replace(each, overflow=True) for each in _equal(2))
    gate = _gate(*engines)

    assert [_engine(_ask(gate, attempt)) for attempt in range(4)] == ["0", "1", "0", "1"]

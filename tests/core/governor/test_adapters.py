"""Requests for adapters go where theirs is loaded, while that is sooner than loading it elsewhere."""

from dataclasses import replace

import pytest

from core.world import governor
from millgate.core.decisions import Admit, Decision, Yield
from millgate.core.events import Arrived, EngineDown, EngineUp, Finished, FirstToken, Released
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior, Settings
from millgate.core.words import Reason

PRIOR = ServicePrior(0.01, 0.0001, 0.01, 0.0005)
NAMES = ("law", "tax", "tea")


def _engines(count: int, slots: int = 1) -> tuple[EngineSettings, ...]:
    first = EngineSettings("", 4, prior=PRIOR, models=("base",), adapters=NAMES, adapter_slots=slots)
    return tuple(replace(first, name=f"{number}") for number in range(count))


def _gate(count: int = 3) -> Governor:
    return governor(LaneSettings("lane", deadline_s=60.0), engines=_engines(count))


def _asks(gate: Governor, attempt: int, model: str, now: float) -> Decision:
    return gate.handle(Arrived(attempt, model=model, prompt_bytes=400, max_tokens=100), now)[0]


def _engine(decision: Decision) -> str:
    assert isinstance(decision, Admit)
    return decision.legs[0].engine


def _answered(gate: Governor, attempt: int, model: str, now: float) -> str:
    """Ask, be answered within a second, and return by which engine."""
    decision = _asks(gate, attempt, model, now)
    gate.handle(FirstToken(attempt), now + 0.1)
    gate.handle(Finished(attempt, 100, 100), now + 1.0)
    gate.handle(Released(attempt), now + 1.0)
    return _engine(decision)


def _loads(gate: Governor, now: float) -> list[int]:
    return [engine.adapter_loads for engine in gate.snapshot(now).engines]


def test_each_adapter_has_its_engine_and_is_loaded_once() -> None:
    gate = _gate()
    went = {
        (name, _answered(gate, 10 * turn + place + 1, name, 10.0 * turn + 2.0 * place))
        for turn in range(5)
        for place, name in enumerate(NAMES)
    }

    assert sorted(name for name, _ in went) == sorted(NAMES)
    assert {engine for _, engine in went} == {"0", "1", "2"}
    assert _loads(gate, 60.0) == [1, 1, 1]


def test_an_adapter_that_many_ask_for_is_loaded_on_a_second_engine() -> None:
    gate = _gate()
    went = [_engine(_asks(gate, number + 1, "law", 0.1 * number)) for number in range(8)]

    assert len(set(went)) > 1
    assert went[0] == went[1], "one more beside it costs less than to load it elsewhere"


def test_requests_for_the_model_itself_go_where_there_is_least_work() -> None:
    gate = _gate()
    assert _engine(_asks(gate, 1, "law", 0.0)) == "0"

    assert _engine(_asks(gate, 2, "base", 0.1)) != "0"
    assert sum(_loads(gate, 1.0)) == 1


def test_an_engine_that_comes_back_has_to_load_again() -> None:
    gate = _gate(1)
    _answered(gate, 1, "law", 0.0)
    gate.handle(EngineDown("0"), 10.0)
    gate.handle(EngineUp("0"), 20.0)

    _answered(gate, 2, "law", 30.0)

    assert _loads(gate, 40.0) == [2]


@pytest.mark.parametrize("model", NAMES)
def test_an_adapter_taken_out_of_the_settings_is_served_no_more(model: str) -> None:
    gate = _gate(2)
    _answered(gate, 1, model, 0.0)
    plain = tuple(replace(each, adapters=()) for each in _engines(2))
    gate.reconfigure(Settings((LaneSettings("lane"),), plain), 10.0)

    # Every engine lists the same models, so that a name that none lists goes to them as it is.
    assert _engine(_asks(gate, 2, model, 20.0)) in {"0", "1"}
    assert _loads(gate, 21.0) == [0, 0]


def test_only_engines_that_name_an_adapter_are_asked_for_it() -> None:
    with_it, without = _engines(2)
    gate = governor(LaneSettings("lane", deadline_s=60.0), engines=(replace(without, adapters=()), with_it))

    assert [_engine(_asks(gate, number + 1, "tea", 0.1 * number)) for number in range(4)] == ["0"] * 4
    refused = _asks(gate, 9, "coffee", 1.0)
    assert isinstance(refused, Yield)
    assert refused.reason is Reason.NO_ENGINE

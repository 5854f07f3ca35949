"""Adapters that only some engines have: requests for one go there, and engines that have said nothing are asked as before."""

from dataclasses import replace

from core.world import governor
from millgate.core.decisions import Admit, Decision
from millgate.core.events import Arrived, EngineDown
from millgate.core.governor import Governor
from millgate.core.settings import EngineSettings, LaneSettings, ServicePrior, Settings
from millgate.wiring.settings import with_lacking

PLAIN = EngineSettings("", 1, prior=ServicePrior(0.01, 0.0001, 0.01, 0.0005))
LANE = LaneSettings("lane", deadline_s=60.0)


def gate(told: tuple[str, ...], **adapters: tuple[str, ...]) -> Governor:
    engines = tuple(replace(PLAIN, name=name, adapters=has) for name, has in adapters.items())
    return governor(LANE, engines=with_lacking(Settings((LANE,), engines), told).engines)


def asks(gate: Governor, attempt: int, model: str) -> Decision:
    return gate.handle(Arrived(attempt, model=model, prompt_bytes=400, max_tokens=100), 1.0)[0]


def engines(gate: Governor, model: str, times: int) -> set[str]:
    """Return where so many requests at once run."""
    decisions = [asks(gate, number + 1, model) for number in range(times)]
    return {each.legs[0].engine for each in decisions if isinstance(each, Admit)}


def test_an_engine_that_has_told_its_adapters_is_asked_for_no_other() -> None:
    assert engines(gate(("a", "b"), a=(), b=("law",)), "law", 2) == {"b"}


def test_an_engine_that_has_told_nothing_is_asked_for_any() -> None:
    assert engines(gate(("b",), a=(), b=("law",)), "law", 2) == {"a", "b"}


def test_models_that_are_no_adapter_of_any_engine_go_everywhere() -> None:
    assert engines(gate(("a", "b"), a=(), b=("law",)), "base", 2) == {"a", "b"}


def test_without_the_engine_that_has_it_an_adapter_is_refused() -> None:
    alone = gate(("a", "b"), a=(), b=("law",))
    alone.handle(EngineDown("b"), 0.5)
    assert engines(alone, "law", 1) == set()

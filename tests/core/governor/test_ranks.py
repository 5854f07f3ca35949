"""Where the shortest goes first: what came before anything was learned is not overtaken by equal requests that come after."""

import pytest

from core.governor.asking import gate_of
from millgate.core.decisions import Admit
from millgate.core.events import Arrived, Finished, FirstToken, Released
from millgate.core.governor import Governor
from millgate.core.settings import LaneSettings

_LANE = LaneSettings("lane", deadline_s=60.0, order="short_first")
ANSWER_S = 0.5


def _ask(gate: Governor, attempt: int, now: float, tenant: str = "") -> list[int]:
    arrival = Arrived(attempt, prompt_bytes=800, max_tokens=200, tenant=tenant)
    return [each.attempt for each in gate.handle(arrival, now) if isinstance(each, Admit)]


def _answer(gate: Governor, attempt: int, now: float) -> list[int]:
    """Answer with a fifth of the tokens that were foreseen; return who is admitted next."""
    gate.handle(FirstToken(attempt), now)
    gate.handle(Finished(attempt, 40, 40), now)
    return [each.attempt for each in gate.handle(Released(attempt), now) if isinstance(each, Admit)]


def _served(gate: Governor, first: int, later: int, tenants: tuple[str, ...]) -> list[int]:
    """Let so many come at once, and then one for each answer; return whom the one stream was given to, in order."""
    running, number, now = _ask(gate, 1, 0.0, tenants[0]), 1, 0.0
    while number < first:
        number += 1
        _ask(gate, number, 0.0, tenants[number % len(tenants)])
    served = list(running)
    while running:
        now += ANSWER_S
        if number < first + later:
            number += 1
            _ask(gate, number, now, tenants[number % len(tenants)])
        running = _answer(gate, running[0], now)
        served += running
    return served


@pytest.mark.parametrize("tenants", [("",), ("a", "b")])
def test_the_first_of_a_fresh_gate_are_not_overtaken_by_equal_requests_whose_size_is_known_better(
    tenants: tuple[str, ...],
) -> None:
    served = _served(gate_of(_LANE, streams=1), 8, 30, tenants)
    assert len(served) == 38, "none is refused"
    for place in range(len(tenants)):
        own = [number for number in served if number % len(tenants) == place and number > 1]
        assert own == sorted(own), "each tenant's in the order in which they came"

"""A gate that stood still: when the answers that it reads afterwards came is unknown, and they teach no times."""

from core.governor.asking import ask, gate_of
from millgate.core.decisions import Admit
from millgate.core.events import EngineProgress, Finished, FirstToken, Growth, Released, StoodStill
from millgate.core.governor import Governor
from millgate.core.limits.gate import DrainReading

_STOP_S = 40.0


def learned(gate: Governor) -> tuple[float, float, float, DrainReading]:
    engine = gate._knowledge.engines.by_name["engine"]
    service = engine.service
    return service.ttft_s(1_000), service.tpot_s(4), engine.reading.per_token_s, engine.drains()


def stopped(gate: Governor, *, told: bool) -> tuple[float, float, float, DrainReading]:
    """Let four requests run, one of them with its first token, and one wait; all are whole when the gate goes on.

    Returns what was learned before.
    """
    for attempt in range(1, 6):
        ask(gate, attempt, stream=attempt < 4)
    gate.handle(FirstToken(1), 0.5)
    gate.handle(EngineProgress("engine", (Growth(1, 10),)), 1.0)
    before = learned(gate)
    if told:
        gate.handle(StoodStill(), _STOP_S)
    for attempt in (2, 3):
        gate.handle(FirstToken(attempt), _STOP_S)
    gate.handle(EngineProgress("engine", (Growth(1, 90),)), _STOP_S)
    for attempt in (1, 2, 3, 4):
        gate.handle(Finished(attempt, 100, 100), _STOP_S)
        gate.handle(Released(attempt), _STOP_S)
    return before


def test_what_ran_while_the_process_stood_still_teaches_no_times() -> None:
    """A stop of 40 s stood in the times of all that ran: requests that an idle engine could serve were refused as too late."""
    gate, untold = gate_of(), gate_of()
    before = stopped(untold, told=False)
    assert learned(untold)[1] > 5 * before[1]

    before = stopped(gate, told=True)

    after = learned(gate)
    assert after[:3] == before[:3]
    assert after[3].per_s >= 0.9 * before[3].per_s
    assert gate.snapshot(_STOP_S).engines[0].running == 1
    assert gate.snapshot(_STOP_S).engines[0].prefill_tokens == 100


def test_what_is_sent_afterwards_teaches_again() -> None:
    gate = gate_of()
    before = stopped(gate, told=True)
    assert isinstance(ask(gate, 6, _STOP_S), Admit)
    gate.handle(FirstToken(6), _STOP_S + 1.0)
    gate.handle(Finished(6, 100, 100), _STOP_S + 11.0)
    assert learned(gate)[1] > before[1]

"""The scene of a gate that falls idle: nothing comes but the engine's gauges, and the figures come back to calm."""

from core.governor.asking import ask, gate_of
from millgate.core.events import EngineSeen, Finished, Released
from millgate.core.settings import LaneSettings


def test_the_early_warning_of_a_gate_that_falls_idle_comes_back_to_calm() -> None:
    """The page went on to show the load and the backlog of the last request, for as long as none came."""
    gate = gate_of(LaneSettings("lane", deadline_s=30.0), streams=1)
    for attempt in range(80):
        ask(gate, attempt, 0.05 * attempt)
    assert gate.snapshot(4.0).pools[0].warning.backlog_s > 1.0
    for attempt in range(80):
        gate.handle(Finished(attempt), 4.0)
        gate.handle(Released(attempt), 4.0)
    busy = gate.snapshot(4.0).pools[0]
    assert busy.alarms
    for second in range(5, 65):
        gate.handle(EngineSeen("engine", float(second), running=0, waiting=0), float(second))

    pool = gate.snapshot(65.0).pools[0]
    assert (pool.warning.occupancy, pool.warning.backlog_s, pool.alarms) == (0.0, 0.0, ())
    assert busy.warning.load > 1.0
    assert pool.warning.load < 0.05

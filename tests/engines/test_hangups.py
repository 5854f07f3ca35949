"""Clients of a real engine that leave: wherever they stand, the engine's own gauges are at 0 within a second."""

import time

import pytest

from engines.conftest import Bench
from engines.findings import note
from engines.process import Engine, seconds_until, seconds_until_idle
from engines.users import begun, talk
from faults.process import GateProcess, until
from faults.talk import Talk


def queued(gate: GateProcess) -> int:
    return sum(lane["queued"] for lane in gate.state()["lanes"])


def permits(gate: GateProcess) -> int:
    return sum(engine["running"] + engine["departing"] for engine in gate.state()["engines"])


def all_leave(lines: list[Talk], how: str) -> None:
    for line in lines:
        if how == "reset":
            line.reset()
        else:
            line.close()


def timed(engine: Engine, gate: GateProcess, what: str, lines: list[Talk], how: str) -> None:
    """Let them leave; the engine is idle within a second and the gate has its permits back soon after."""
    all_leave(lines, how)
    left_at = time.monotonic()
    if engine.kind.looks_when_idle:
        until(
            lambda: not permits(gate)
        )  # by the gate's readings alone: each one more puts off the engine's look
        until(lambda: engine.load().total == 0)
    else:
        seconds_until_idle(engine)
    took_s = time.monotonic() - left_at
    permits_s = took_s + seconds_until(lambda: not permits(gate))
    note(
        engine.kind.name,
        f"{len(lines)} leave {what} ({how})",
        idle_after=f"{took_s:.2f} s",
        permits_after=f"{permits_s:.2f} s",
    )
    assert took_s < engine.kind.lets_go_s


def test_one_who_leaves_while_queued_never_reaches_the_engine(bench: Bench) -> None:
    gate = bench.gate(cap=1, lanes__interactive__ttft_slo="1h")
    running = begun(gate, bench.engine)
    waiting = talk(gate, bench.engine, stream=True)
    until(lambda: queued(gate) == 1)
    waiting.close()
    until(lambda: queued(gate) == 0)
    until(lambda: bench.engine.load().total == 1)
    running.close()
    by = time.monotonic() + 1.0
    totals = [bench.engine.load().total]
    while time.monotonic() < by:
        totals.append(bench.engine.load().total)

    assert totals == sorted(totals, reverse=True), "somebody who had left was sent to the engine"
    assert totals[-1] == 0
    assert gate.ended() == {"client_gone/queued": 1, "client_gone/decode": 1}


@pytest.mark.parametrize("how", ["close", "reset"])
def test_those_who_leave_while_they_are_answered_are_given_up_within_a_second(bench: Bench, how: str) -> None:
    gate = bench.gate(cap=4, lanes__interactive__ttft_slo="1h")
    lines = [begun(gate, bench.engine) for _ in range(4)]
    until(lambda: bench.engine.load().running == 4)

    timed(bench.engine, gate, "while streaming", lines, how)
    assert gate.ended() == {"client_gone/decode": 4}


@pytest.mark.parametrize("how", ["close", "reset"])
def test_those_who_leave_while_a_whole_answer_is_made_are_given_up_within_a_second(
    bench: Bench, how: str
) -> None:
    gate = bench.gate(cap=4, lanes__interactive__ttft_slo="1h")
    lines = [talk(gate, bench.engine, stream=False) for _ in range(4)]
    until(lambda: bench.engine.load().running == 4)

    timed(bench.engine, gate, "while a whole answer is made", lines, how)
    assert gate.ended() == {"client_gone/prefill": 4}


def test_those_who_leave_while_they_wait_inside_the_engine_are_given_up_within_a_second(bench: Bench) -> None:
    """The gate lets in more than the engine runs at once: vLLM has sent its 200, llama-server nothing yet."""
    if bench.engine.kind.looks_when_idle:
        pytest.skip(f"{bench.engine.kind.name} looks for who has left only while it writes nothing")
    streams = bench.engine.kind.streams
    gate = bench.gate(cap=streams + 2, lanes__interactive__ttft_slo="1h")
    running = [begun(gate, bench.engine) for _ in range(streams)]
    waiting = [talk(gate, bench.engine, stream=True) for _ in range(2)]
    until(lambda: bench.engine.load() == (streams, 2))
    all_leave(waiting, "close")
    took_s = seconds_until(lambda: bench.engine.load() == (streams, 0))
    note(bench.engine.kind.name, "2 leave while the engine lets them wait", gone_after=f"{took_s:.2f} s")
    assert took_s < bench.engine.kind.lets_go_s

    timed(bench.engine, gate, "while streaming", running, "close")
    assert gate.ended() == {"client_gone/prefill": 2, "client_gone/decode": streams}

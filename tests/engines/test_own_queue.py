"""An engine that refuses by itself: both forms in which vLLM and SGLang do it reach the client as one, a 503 that may be retried."""

import json

import pytest

from engines.conftest import Bench
from engines.findings import note
from engines.process import seconds_until_idle
from engines.users import begun, talk
from faults.process import GateProcess, until
from faults.talk import Talk


def full(bench: Bench) -> tuple[GateProcess, list[Talk]]:
    """Fill the engine to its own bound through a gate that would let in more."""
    most = bench.engine.kind.most
    if most is None:
        pytest.skip(f"{bench.engine.kind.name} has no bound of its own")
    gate = bench.gate(cap=2 * most, lanes__interactive__ttft_slo="1h")
    streams = bench.engine.kind.streams
    lines = [begun(gate, bench.engine) for _ in range(streams)]
    lines += [talk(gate, bench.engine, stream=True) for _ in range(most - streams)]
    until(lambda: bench.engine.load().total == most)
    return gate, lines


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_the_engines_own_refusal_is_a_503_before_anything_else(bench: Bench, stream: bool) -> None:
    gate, lines = full(bench)
    refused = talk(gate, bench.engine, stream=stream).answer()
    for line in lines:
        line.close()

    assert refused.status == 503
    assert refused.whole
    said = json.loads(refused.body)
    assert said.get("error", said)["code"] == 503  # SGLang's whole answers say it in no `error`
    seconds_until_idle(bench.engine)
    assert gate.ended()["engine_failed/refused"] == 1


def test_a_burst_over_the_engines_bound_ends_whole_for_everybody(bench: Bench) -> None:
    """A burst passes vLLM's first check together and is refused by the second: as 200 and an error event. SGLang writes that always."""
    most = bench.engine.kind.most
    if most is None:
        pytest.skip(f"{bench.engine.kind.name} has no bound of its own")
    gate = bench.gate(cap=4 * most, lanes__interactive__ttft_slo="1h")
    lines = [talk(gate, bench.engine, stream=True, max_tokens=16) for _ in range(4 * most)]
    answers = [line.answer() for line in lines]
    served = [each for each in answers if each.status == 200]
    refused = [each for each in answers if each.status == 503]
    outcomes = gate.ended()
    note(bench.engine.kind.name, f"{4 * most} at once, it takes {most}", attempts=outcomes)

    assert len(served) + len(refused) == len(answers)
    assert len(served) >= bench.engine.kind.of_burst
    assert refused
    assert all(each.whole and each.body.endswith(b"data: [DONE]\n\n") for each in served)
    assert all(each.whole and json.loads(each.body)["error"]["code"] == 503 for each in refused)
    assert outcomes == {"good": len(served), "engine_failed/refused": len(refused)}

"""vllm bench, guidellm and aiperf as they are, at eight times the cap: each starts, finishes, and adds up."""

import os
from pathlib import Path

import pytest

from engines.conftest import Bench
from engines.findings import note
from engines.process import Engine
from engines.tools import TOOLS, Asked, Told, Tool, run
from engines.watch import Watch

REQUESTS = 64
AT_ONCE = 8
"""Times the cap."""
PATIENT = {"lanes__interactive__ttft_slo": "2m", "lanes__interactive__deadline": "5m"}
"""So that all are served: then the answers a second compare with the engine's own."""


def _asked(tool: Tool, engine: Engine, url: str, at_once: int, folder: Path) -> Asked:
    tokenizer = os.environ.get("MILLGATE_TEST_TOKENIZER", "")
    if tool.variable not in os.environ or not tokenizer:
        pytest.skip(
            f"no {tool.name}: {tool.variable} names no command, or MILLGATE_TEST_TOKENIZER no folder (see docs/how-to)"
        )
    folder.mkdir()
    return Asked(url, engine.model, tokenizer, REQUESTS, at_once, folder)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_a_tool_at_eight_times_the_cap_gets_what_the_engine_can_give(
    bench: Bench, tmp_path: Path, tool: Tool
) -> None:
    """The engine alone gets as many at once as it runs: it refuses what is far above that, or queues it for ever."""
    engine, cap = bench.engine, bench.engine.kind.streams
    gate = bench.gate(cap=cap, **PATIENT)
    address = f"http://127.0.0.1:{gate.port}"
    alone = run(tool, _asked(tool, engine, engine.url, cap, tmp_path / "alone"))
    with Watch(engine) as watch:
        through = run(tool, _asked(tool, engine, address, AT_ONCE * cap, tmp_path / "through"))
    outcomes = gate.ended()
    note(
        engine.kind.name,
        f"{tool.name}, {AT_ONCE * cap} at once at a cap of {cap}",
        throughput_share=round(through.tokens_per_s / alone.tokens_per_s, 3),
        alone=alone,
        through=through,
        peak=watch.peak,
        attempts=outcomes,
    )

    assert alone.failed == through.failed == 0
    assert through.answered >= REQUESTS
    assert outcomes.get("good", 0) + outcomes.get("late", 0) >= REQUESTS
    assert watch.peak <= cap


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_what_a_tool_calls_failed_is_what_the_gate_refused(bench: Bench, tmp_path: Path, tool: Tool) -> None:
    engine, cap = bench.engine, bench.engine.kind.streams
    gate = bench.gate(cap=cap, lanes__interactive__max_queue="4", **PATIENT)
    asked = _asked(tool, engine, f"http://127.0.0.1:{gate.port}", AT_ONCE * cap, tmp_path / "refused")
    with Watch(engine) as watch:
        told: Told = run(tool, asked)
    outcomes = gate.ended()
    refused = sum(count for outcome, count in outcomes.items() if outcome.startswith("yielded"))
    note(engine.kind.name, f"{tool.name} before a queue of 4", told=told, peak=watch.peak, attempts=outcomes)

    assert told.answered > 0
    assert told.failed > 0
    assert {outcome.partition("/")[0] for outcome in outcomes} <= {"good", "late", "yielded", "client_gone"}
    assert refused >= told.failed
    assert watch.peak <= cap

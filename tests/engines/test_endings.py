"""A real engine that is stopped or killed while it answers: nothing hangs, nothing broken looks finished (INV-10)."""

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import openai
import pytest

from engines.conftest import Bench
from engines.findings import note
from engines.users import EXACTLY, LONG, asked
from faults.process import GateProcess, until

USERS = 4
PATIENCE = {"limits__first_event": "10s"}
"""vLLM may end its own core before the core has said `abort`: its answers then stay open and silent for good.

Streams are broken off 5 s after the engine is seen to take no connections, whole answers at their first event's time.
"""
NOTHING_HANGS_S = 15.0
STARTS_WITHIN_S = 60.0
"""On a slow machine the first step of a fresh engine takes tens of seconds."""


class Ending(NamedTuple):
    """What one user saw: the finish reason or the error that the SDK raised, and when it was over."""

    word: str
    at: float


def stream_to_the_end(gate: GateProcess, model: str, number: int, heard: Counter[int]) -> Ending:
    """Stream with the SDK until it ends in whatever way; count its chunks in `heard`."""
    finish = ""
    with openai.OpenAI(
        base_url=f"http://127.0.0.1:{gate.port}/v1", api_key="sk-test", max_retries=0, timeout=120.0
    ) as client:
        try:
            for chunk in client.chat.completions.create(
                model=model, messages=asked(number), max_tokens=LONG, stream=True, extra_body=EXACTLY
            ):
                heard[number] += 1
                finish = next((choice.finish_reason for choice in chunk.choices), None) or finish
        except openai.APIError as error:
            return Ending(type(error).__name__, time.monotonic())
        return Ending(f"finished: {finish}", time.monotonic())


def whole_to_the_end(gate: GateProcess, model: str, number: int, _heard: Counter[int]) -> Ending:
    """Ask for a whole answer with the SDK."""
    with openai.OpenAI(
        base_url=f"http://127.0.0.1:{gate.port}/v1", api_key="sk-test", max_retries=0, timeout=120.0
    ) as client:
        try:
            answer = client.chat.completions.create(
                model=model, messages=asked(number), max_tokens=LONG, extra_body=EXACTLY
            )
        except openai.APIError as error:
            return Ending(type(error).__name__, time.monotonic())
        return Ending(f"finished: {answer.choices[0].finish_reason}", time.monotonic())


def all_end(bench: Bench, gate: GateProcess, what: str, end: Callable[[], None]) -> list[Ending]:
    """Let half of the users stream and half ask for whole answers, end the engine among them, see what they get."""
    asks = [stream_to_the_end, whole_to_the_end] * (USERS // 2)
    model, heard = bench.engine.model, Counter[int]()
    with ThreadPoolExecutor(USERS) as pool:
        users = [pool.submit(ask, gate, model, number, heard) for number, ask in enumerate(asks)]
        until(lambda: bench.engine.load().running == USERS, STARTS_WITHIN_S, "not all of them run")
        until(
            lambda: all(heard[number] > 1 for number in range(0, USERS, 2)),
            STARTS_WITHIN_S,
            "no stream has begun",
        )
        began = time.monotonic()
        end()
        endings = [user.result() for user in users]
    code = bench.engine.wait()
    outcomes = gate.ended()
    note(
        bench.engine.kind.name,
        f"{what} with {USERS} running",
        streams=[each.word for each in endings[::2]],
        whole=[each.word for each in endings[1::2]],
        over_after=f"{max(each.at for each in endings) - began:.2f} s",
        exit=code,
        attempts=outcomes,
    )
    assert max(each.at for each in endings) - began < NOTHING_HANGS_S
    assert sum(outcomes.values()) == USERS
    assert {each.partition("/")[0] for each in outcomes} == {"engine_failed"}
    return endings


def serves_again(bench: Bench, gate: GateProcess) -> None:
    """Start the engine again at its address: the same gate goes on, with every permit."""
    bench.engine.up()
    with openai.OpenAI(base_url=f"http://127.0.0.1:{gate.port}/v1", api_key="sk-test") as client:
        answer = client.chat.completions.create(
            model=bench.engine.model, messages=asked(0), max_tokens=4, extra_body=EXACTLY
        )
    assert answer.choices[0].finish_reason == "length"
    (engine,) = gate.state()["engines"]
    assert (engine["running"], engine["departing"]) == (0, 0)


@pytest.mark.parametrize("how", ["terminate", "terminate_core", "kill", "kill_core"])
def test_what_an_engine_leaves_unfinished_is_an_error_for_everybody_and_the_gate_goes_on(
    own_bench: Bench, how: str
) -> None:
    engine = own_bench.engine
    if how.endswith("core") and engine.kind.core is None:
        pytest.skip(f"{engine.kind.name} computes in the process that answers")
    if how == "terminate" and engine.kind.drains:
        pytest.skip(f"{engine.kind.name} leaves nothing unfinished when it is asked to stop")
    gate = own_bench.gate(cap=USERS, **PATIENCE)

    endings = all_end(own_bench, gate, how, getattr(engine, how))

    assert [each.word for each in endings if each.word.startswith("finished")] == []
    serves_again(own_bench, gate)

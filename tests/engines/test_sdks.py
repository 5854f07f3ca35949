"""Both SDKs, unmodified, through the gate to a real engine: whole answers and streams, with usage, counted as good."""

from typing import Any

import anthropic
import openai
import pytest

from engines.conftest import Bench
from engines.findings import note
from engines.users import EXACTLY, asked
from faults.process import GateProcess

TOKENS = 12
PATIENT = {"lanes__interactive__ttft_slo": "1h"}
"""An answer is good on a slow machine too."""


def openai_at(gate: GateProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{gate.port}/v1", api_key="sk-test", max_retries=0)


def anthropic_at(gate: GateProcess) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=f"http://127.0.0.1:{gate.port}", api_key="sk-test", max_retries=0)


def wanted(bench: Bench) -> dict[str, Any]:
    return {
        "model": bench.engine.model,
        "messages": asked(0),
        "max_tokens": TOKENS,
        "extra_body": EXACTLY,
    }


def test_the_openai_sdk_gets_a_whole_answer(bench: Bench) -> None:
    gate = bench.gate(cap=4, **PATIENT)
    with openai_at(gate) as client:
        whole = client.chat.completions.create(**wanted(bench))
        listed = client.models.list().data[0].id

    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == TOKENS
    assert listed == bench.engine.model
    assert gate.ended() == {"good": 1}


@pytest.mark.parametrize("usage", [True, False], ids=["with-usage", "without-usage"])
def test_the_openai_sdk_gets_a_stream_with_usage_only_if_it_asked(bench: Bench, usage: bool) -> None:
    gate = bench.gate(cap=4, **PATIENT)
    options: Any = {"stream_options": {"include_usage": True}} if usage else {}
    with openai_at(gate) as client:
        chunks = list(client.chat.completions.create(stream=True, **wanted(bench), **options))

    finishes = [each.choices[0].finish_reason for each in chunks if each.choices]
    assert finishes[-1] == "length"
    assert [each.usage.completion_tokens for each in chunks if each.usage] == [TOKENS] * usage
    assert gate.ended() == {"good": 1}


def test_the_openai_sdk_gets_a_completion_and_a_stream_of_one(bench: Bench) -> None:
    gate = bench.gate(cap=4, **PATIENT)
    asks: dict[str, Any] = {"model": bench.engine.model, "prompt": "The mill", "max_tokens": TOKENS}
    with openai_at(gate) as client:
        whole = client.completions.create(**asks, extra_body=EXACTLY)
        chunks = list(client.completions.create(**asks, stream=True, extra_body=EXACTLY))

    assert whole.choices[0].finish_reason == "length"
    assert [each.choices[0].finish_reason for each in chunks if each.choices][-1] == "length"
    assert gate.ended() == {"good": 2}


def test_the_anthropic_sdk_gets_a_whole_answer_and_a_stream(bench: Bench) -> None:
    if not bench.engine.kind.messages:
        pytest.skip(f"{bench.engine.kind.name} does not serve /v1/messages")
    gate = bench.gate(cap=4, **PATIENT)
    with anthropic_at(gate) as client:
        whole = client.messages.create(**wanted(bench))
        with client.messages.stream(**wanted(bench)) as stream:
            final = stream.get_final_message()

    for message in (whole, final):
        assert message.stop_reason == "max_tokens"
        assert message.usage.output_tokens == TOKENS
    assert gate.ended() == {"good": 2}
    note(bench.engine.kind.name, "SDKs", version=bench.engine.version, openai="ok", anthropic="ok")


def test_the_openai_sdk_gets_a_response_and_a_stream_of_one(bench: Bench) -> None:
    gate = bench.gate(cap=4, **PATIENT)
    asks: dict[str, Any] = {"model": bench.engine.model, "input": "The mill", "max_output_tokens": TOKENS}
    with openai_at(gate) as client:
        whole = client.responses.create(**asks)
        events = list(client.responses.create(**asks, stream=True))

    assert whole.usage is not None
    assert 0 < whole.usage.output_tokens <= TOKENS
    assert events[0].type == "response.created"
    assert events[-1].type in {"response.completed", "response.incomplete"}
    assert gate.ended() == {"good": 2}

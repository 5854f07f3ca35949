"""What is wrong with a request, as a real engine says it: its words reach the client, and cost no engine and no permit."""

from typing import Any

import openai
import pytest

from engines.conftest import Bench
from engines.findings import note
from engines.users import EXACTLY, asked

LONGER_THAN_ITS_CONTEXT = "the mill and the river " * 1_800
"""Of 8,000 tokens or more, and below what the gate lets wait to be read."""
PATIENT = {"lanes__*__ttft_slo": "1h"}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_prompt_longer_than_the_context_is_refused_in_the_engines_own_words(
    bench: Bench, stream: bool
) -> None:
    gate = bench.gate(cap=4, **PATIENT)
    wanted: dict[str, Any] = {"model": bench.engine.model, "max_tokens": 8, "extra_body": EXACTLY}
    too_long: Any = [{"role": "user", "content": LONGER_THAN_ITS_CONTEXT}]
    with openai.OpenAI(
        base_url=f"http://127.0.0.1:{gate.port}/v1", api_key="sk-test", max_retries=0
    ) as client:
        for _ in range(4):
            with pytest.raises(openai.BadRequestError) as refused:
                client.chat.completions.create(messages=too_long, stream=stream, **wanted)
        good = client.chat.completions.create(messages=asked(0), **wanted)
    outcomes = gate.ended()
    note(
        bench.engine.kind.name,
        "a prompt longer than its context",
        says=refused.value.message,
        attempts=outcomes,
    )

    assert "x-millgate-reason" not in refused.value.response.headers, "the engine has said it, not the gate"
    assert good.choices[0].finish_reason == "length"
    assert outcomes == {"bad_request": 4, "good": 1}
    assert [engine["running"] for engine in gate.state()["engines"]] == [0]

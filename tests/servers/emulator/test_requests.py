"""What the embedded engine reads from a body: lengths, flags, and errors that name the field."""

import json
from random import Random

import pytest

from millgate.servers.emulator.requests import (
    BadRequestError,
    EmulatedSequence,
    GenerationRequest,
    RequestReader,
    Surface,
)


def read(body: dict[str, object], *, chat: bool = True, seed: int = 1) -> GenerationRequest:
    reader = RequestReader(max_model_len=1000, tokens_per_event=3, model_name="own", dice=Random(seed))
    return reader.read(json.dumps(body).encode(), Surface.CHAT if chat else Surface.COMPLETION)


def chat(**fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "x" * 40}], **fields}


def test_prompt_tokens_are_a_quarter_of_the_bytes_of_all_messages_rounded_up() -> None:
    body = {
        "messages": [
            {"role": "system", "content": "ab"},
            {"role": "user", "content": [{"type": "text", "text": "äöü"}, {"type": "image_url"}]},
            {"role": "assistant", "content": None, "tool_calls": []},
            {"role": "user", "content": "c"},
        ],
        "max_tokens": 1,
    }
    assert read(body).prompt_tokens == 3  # 2 + 6 + 1 bytes


def test_declared_tools_and_calls_of_them_are_prompt() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "x" * 400}}]
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    plain = read(chat()).prompt_tokens

    assert read(chat(tools=None)).prompt_tokens == read(chat(tools=[])).prompt_tokens == plain == 10
    assert read(chat(tools=tools)).prompt_tokens == 10 + -(-len(json.dumps(tools)) // 4)
    assert read({"messages": turns}).prompt_tokens == -(-len(json.dumps([call])) // 4)


def test_with_tools_the_limit_of_an_agent_is_a_limit() -> None:
    """Claude Code asks for 32,000 tokens with each turn."""
    tools = [{"name": "Agent", "input_schema": {}}]
    answers = [read(chat(max_tokens=900, tools=tools), seed=seed).answers[0] for seed in range(9)]

    assert len({answer.output_tokens for answer in answers}) > 5
    assert {answer.finish_reason for answer in answers} == {"tool_calls"}
    assert read(chat(max_tokens=2, tools=tools)).answers[0].output_tokens == 2


def test_tools_that_are_none_are_named() -> None:
    with pytest.raises(BadRequestError, match=r"tools\[1\]\.name: Expected `str`"):
        read(chat(tools=[{"name": "f"}, {"name": 5}]))


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("abcdefgh", [2]),
        ([1, 2, 3], [3]),
        (["abcd", "abcdefgh"], [1, 2]),
        ([[1, 2], [3, 4, 5], [6]], [2, 3, 1]),
    ],
)
def test_a_completion_takes_text_token_ids_or_lists_of_either(prompt: object, prompts: list[int]) -> None:
    request = read({"prompt": prompt, "max_tokens": 5}, chat=False)

    assert request.answers == tuple(EmulatedSequence(tokens, 5, "length") for tokens in prompts)
    assert request.prompt_tokens == sum(prompts)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_answer_is_as_long_as_its_limit(name: str) -> None:
    assert read(chat(**{name: 17})).answers == (EmulatedSequence(10, 17, "length"),)


@pytest.mark.parametrize(
    ("hidden", "tokens", "finish"), [(20, 20, "stop"), (50, 50, "stop"), (80, 50, "length")]
)
def test_the_true_length_may_hide_under_a_large_limit(hidden: int, tokens: int, finish: str) -> None:
    request = read(chat(max_tokens=50, millgate_output_tokens=hidden))

    assert request.answers == (EmulatedSequence(10, tokens, finish),)


def test_min_tokens_lifts_a_short_answer() -> None:
    assert read(chat(max_tokens=50, millgate_output_tokens=3, min_tokens=9)).answers[0].output_tokens == 9


def test_ignore_eos_without_a_limit_fills_the_context() -> None:
    assert read(chat(ignore_eos=True)).answers == (EmulatedSequence(10, 990, "length"),)


def test_without_a_limit_lengths_follow_a_seeded_law_within_the_context() -> None:
    lengths = [read(chat(), seed=seed).answers[0].output_tokens for seed in range(200)]

    assert lengths == [read(chat(), seed=seed).answers[0].output_tokens for seed in range(200)]
    assert all(1 <= length <= 990 for length in lengths)
    assert 100 < sorted(lengths)[100] < 165


def test_n_multiplies_the_answers_and_not_the_prompt() -> None:
    request = read(chat(n=3, max_tokens=4))

    assert request.answers == (EmulatedSequence(10, 4, "length"),) * 3
    assert request.prompt_tokens == 10


def test_flags_and_names_are_read_and_have_defaults() -> None:
    plain = read(chat(max_tokens=1))
    full = read(
        chat(
            max_tokens=1,
            model="other",
            stream=True,
            stream_options={"include_usage": True},
            millgate_tokens_per_event=7,
            temperature=0.1,
        )
    )
    assert (plain.model, plain.stream, plain.include_usage, plain.tokens_per_event) == (
        "own",
        False,
        False,
        3,
    )
    assert (full.model, full.stream, full.include_usage, full.tokens_per_event) == ("other", True, True, 7)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (chat(max_tokens=0), "max_tokens"),
        (chat(max_tokens=991), "max_tokens"),
        (chat(max_tokens="many"), "max_tokens"),
        (chat(max_completion_tokens=-1), "max_completion_tokens"),
        (chat(min_tokens=6, max_tokens=5), "min_tokens"),
        (chat(n=0), "n"),
        (chat(n=129), "n"),
        (chat(millgate_output_tokens=0), "millgate_output_tokens"),
        (chat(millgate_tokens_per_event=0), "millgate_tokens_per_event"),
        ({"messages": []}, "messages"),
        ({"max_tokens": 3}, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 4000}]}, "messages"),
    ],
)
def test_a_wrong_field_is_named_with_its_limit(body: dict[str, object], field: str) -> None:
    with pytest.raises(BadRequestError, match=field) as caught:
        read(body)
    assert caught.value.field == field


@pytest.mark.parametrize("prompt", [None, "", [], [1, "two"], ["x" * 9000]])
def test_a_wrong_prompt_is_refused_without_showing_it(prompt: object) -> None:
    with pytest.raises(BadRequestError, match="prompt") as caught:
        read({"prompt": prompt}, chat=False)
    assert "xxx" not in str(caught.value)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b'"text"'])
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    reader = RequestReader(max_model_len=1000, tokens_per_event=1, model_name="own", dice=Random(1))

    with pytest.raises(BadRequestError, match="body"):
        reader.read(body, Surface.CHAT)

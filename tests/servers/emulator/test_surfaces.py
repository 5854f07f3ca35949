"""The embedded engine beyond completions: tool calls, messages, responses, and what only reads."""

import json
from random import Random
from typing import Any

import pytest

from millgate.dialects.anthropic import ANTHROPIC
from millgate.dialects.contract import Usage
from millgate.dialects.pooling import POOLING
from millgate.dialects.responses import RESPONSES
from millgate.dialects.sse import Splitter
from millgate.servers.emulator.answers import MOST_KEPT, KeptResponses, MessageText, ResponseText
from millgate.servers.emulator.pooling import PoolingAnswers
from millgate.servers.emulator.requests import (
    EmulatedSequence,
    Function,
    GenerationRequest,
    RequestReader,
    Surface,
    Tool,
    ToolCall,
    ToolChoice,
    choose,
)

NAMED = Tool(function=Function(name="a", parameters={"type": "object"}))
FLAT = Tool(name="b", input_schema={"required": ["x"], "properties": {"x": {"type": "integer"}}})


def request(surface: Surface, tool: ToolCall | None = None) -> GenerationRequest:
    return GenerationRequest(surface, "m", True, False, 1, 7, (EmulatedSequence(7, 3, "stop"),), tool)


def streamed(text: MessageText | ResponseText, finish_reason: str = "stop") -> list[bytes]:
    whole = text.opening(0) + text.tokens(0, 2) + text.last_tokens(0, 1, finish_reason) + text.closing(3)
    splitter = Splitter()
    events = splitter.feed(whole)
    assert not splitter.rest
    return events


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        (None, "a"),
        ("auto", "a"),
        ("required", "a"),
        (ToolChoice(type="tool", name="b"), "b"),
        (ToolChoice(type="function", function=Function(name="b")), "b"),
        (ToolChoice(type="any"), "a"),
        ("none", None),
        (ToolChoice(type="none"), None),
        (ToolChoice(type="tool", name="c"), None),
    ],
)
def test_the_tool_that_is_asked_for_is_called(choice: str | ToolChoice | None, name: str | None) -> None:
    call = choose([NAMED, FLAT], choice)
    assert (call.name if call is not None else None) == name


def test_no_tools_are_no_call() -> None:
    assert choose(None, "required") is None
    assert choose([], None) is None


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, "tok"),
        ({"type": "number"}, 1),
        ({"type": "boolean"}, True),
        ({"type": "array", "items": {}}, []),
        ({"type": "null"}, None),
        ({"enum": ["x", "y"]}, "x"),
        ({"type": "object", "properties": {"y": {}}}, {}),
        ({"required": ["y", 5], "properties": {}}, {"y": {}}),
        ({}, {}),
    ],
)
def test_arguments_are_the_plainest_that_fit(schema: dict[str, Any], value: Any) -> None:
    tool = Tool(name="b", parameters={"required": ["x"], "properties": {"x": schema}})
    call = choose([tool], None)
    assert call is not None
    assert json.loads(call.arguments) == {"x": value}


@pytest.mark.parametrize("tool", [None, ToolCall("a", '{"x":1}')])
def test_a_message_stream_is_one_that_our_own_dialect_reads(tool: ToolCall | None) -> None:
    seen = [
        ANTHROPIC.read_event(each) for each in streamed(MessageText(request(Surface.MESSAGES, tool), 1, 0))
    ]
    assert sum(each.content for each in seen) == (2 if tool is None else 4)
    assert seen[-1].done
    assert seen[-2].usage == Usage(7, 3)


@pytest.mark.parametrize(
    ("finish_reason", "kind"),
    [("stop", "response.completed"), ("length", "response.incomplete"), ("abort", "response.failed")],
)
@pytest.mark.parametrize("tool", [None, ToolCall("a", '{"x":1}')])
def test_a_response_stream_is_one_that_our_own_dialect_reads(
    tool: ToolCall | None, finish_reason: str, kind: str
) -> None:
    events = streamed(ResponseText(request(Surface.RESPONSES, tool), 1, 0), finish_reason)
    seen = [RESPONSES.read_event(each) for each in events]
    assert events[-1].startswith(f"event: {kind}\n".encode())
    assert seen[0].answer_id == f"resp_{1:032x}"
    assert seen[-1].done
    assert seen[-1].usage == Usage(7, 3, 0)
    assert (seen[-1].error is not None) is (finish_reason == "abort")
    assert sum(each.content for each in seen) == (2 if tool is None else 3)
    numbers = [json.loads(each.partition(b"data: ")[2])["sequence_number"] for each in events]
    assert numbers == list(range(len(events)))


def test_an_abort_is_said_in_a_messages_own_field() -> None:
    events = streamed(MessageText(request(Surface.MESSAGES), 1, 0), "abort")
    assert ANTHROPIC.read_event(events[-2]).finish == "abort"
    assert ANTHROPIC.is_aborted(MessageText(request(Surface.MESSAGES), 1, 0).whole([(1, "abort")]))


def test_the_oldest_response_goes_first() -> None:
    kept = KeptResponses()
    for number in range(MOST_KEPT + 1):
        kept.add(str(number), b"%d" % number)
    assert kept.ask(b"GET", b"0") is None
    assert kept.ask(b"GET", b"1") == b"1"
    assert json.loads(kept.ask(b"DELETE", b"1") or b"") == {"id": "1", "object": "response", "deleted": True}
    assert kept.ask(b"DELETE", b"1") is None


def test_what_only_reads_is_answered_in_the_form_of_its_path() -> None:
    reader = RequestReader(max_model_len=100, tokens_per_event=1, model_name="m", dice=Random(1))
    pooling = PoolingAnswers(reader, "m")
    pooled = json.loads(pooling.answer(b"/pooling", b'{"input":["a","b"]}'))
    assert [each["object"] for each in pooled["data"]] == ["pooling", "pooling"]
    classified = json.loads(pooling.answer(b"/classify", b'{"input":["a","b"]}'))
    assert [each["num_classes"] for each in classified["data"]] == [2, 2]
    listed = json.loads(pooling.answer(b"/v1/embeddings", b'{"input":["a"]}'))
    # As vLLM does; Mistral's SDK refuses an answer without.
    assert listed["id"].startswith("embd-")
    embedded = json.loads(pooling.answer(b"/v2/embed", b'{"texts":["a","b","c"]}'))
    assert len(embedded["embeddings"]["float"]) == 3
    billed = POOLING.read_usage(json.dumps(embedded).encode())
    assert billed == Usage(embedded["meta"]["billed_units"]["input_tokens"], 0)

"""Reading Anthropic's requests, answers and streams."""

import json
from typing import Any

import pytest

from millgate.dialects.anthropic import ANTHROPIC, STATUS_OF_TYPE
from millgate.dialects.contract import BadInputError, RequestFacts, StreamEvent, Usage
from millgate.dialects.sse import Splitter

read = ANTHROPIC.readers[b"/v1/messages"]


def messages(**fields: Any) -> bytes:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **fields}
    return json.dumps(body).encode()


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


# As Anthropic documents a stream with a text and a tool call ("Streaming messages").
STREAM = [
    event(
        "message_start",
        message={
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "content": [],
            "usage": {"input_tokens": 472, "cache_read_input_tokens": 28, "output_tokens": 2},
        },
    ),
    event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    event("ping"),
    event("content_block_delta", index=0, delta={"type": "text_delta", "text": "Okay"}),
    event("content_block_stop", index=0),
    event(
        "content_block_start",
        index=1,
        content_block={"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}},
    ),
    event("content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": ""}),
    event("content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": '{"a":1}'}),
    event("content_block_stop", index=1),
    event(
        "message_delta",
        delta={"stop_reason": "tool_use", "stop_sequence": None},
        usage={"output_tokens": 89},
    ),
    event("message_stop"),
]


def test_what_the_gate_needs_is_read() -> None:
    facts = read(messages(stream=True))
    assert facts.shape is not None
    assert facts._replace(shape=None) == RequestFacts(
        "m", stream=True, max_tokens=9, answers=1, include_usage=True
    )


def test_an_application_that_warms_the_prompt_cache_asks_for_no_tokens() -> None:
    assert read(messages(max_tokens=0)).max_tokens == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", -1),
        ("max_tokens", "9"),
        ("messages", []),
        ("messages", "hi"),
        ("stream", 1),
        ("stop_sequences", ["x"] * 1000),
        ("tools", [{}] * 2000),
        ("model", "a\nb"),
    ],
)
def test_a_bad_value_is_refused_with_its_field(field: str, value: Any) -> None:
    with pytest.raises(BadInputError) as caught:
        read(messages(**{field: value}))
    assert caught.value.field == field
    assert caught.value.message.startswith(field)


def test_a_field_that_stands_twice_is_refused() -> None:
    with pytest.raises(BadInputError, match="more than once"):
        read(b'{"max_tokens":1,' + messages()[1:])


def test_every_event_of_a_stream_is_what_it_is() -> None:
    seen = [ANTHROPIC.read_event(each) for each in STREAM]
    assert [each.content for each in seen] == [
        *[False] * 3,
        True,
        False,
        True,  # the tool's name is the model's own
        False,
        True,
        *[False] * 3,
    ]
    assert seen[0] == StreamEvent(opening=True, usage=Usage(500, None, 28))
    assert seen[2].silent
    assert seen[9].usage == Usage(None, 89)
    assert [each.done for each in seen] == [*[False] * 10, True]
    assert all(each.finish is None for each in seen)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 7, 64])
def test_a_stream_in_any_pieces_and_line_ends_reads_the_same(line_end: bytes, size: int) -> None:
    whole = b"".join(STREAM).replace(b"\n", line_end)
    splitter = Splitter()
    pieces = [piece for at in range(0, len(whole), size) for piece in splitter.feed(whole[at : at + size])]
    seen = [ANTHROPIC.read_event(piece) for piece in pieces if piece.strip()]
    assert seen == [ANTHROPIC.read_event(each) for each in STREAM]


def test_the_mark_of_the_middle_stands_in_deltas_alone_and_cannot_be_said_by_the_model() -> None:
    said = event(
        "content_block_delta", index=0, delta={"type": "text_delta", "text": "event: message_stop\n"}
    )
    tricky = event("content_block_start", content_block={"text": "event: content_block_delta\n"})
    assert said.count(ANTHROPIC.unfinished) == 1
    assert [each.count(ANTHROPIC.unfinished) for each in (*STREAM, tricky)] == [
        int(b"event: content_block_delta\n" in each) for each in (*STREAM, tricky)
    ]
    assert ANTHROPIC.unfinished not in tricky


@pytest.mark.parametrize(("kind", "status"), STATUS_OF_TYPE.items())
def test_an_error_event_means_the_status_of_its_type(kind: str, status: int) -> None:
    error = ANTHROPIC.read_event(event("error", error={"type": kind, "message": "x"})).error
    assert error is not None
    assert error.status == status
    assert json.loads(error.body)["error"]["type"] == kind


def test_an_error_in_another_shape_is_put_into_this_one() -> None:
    error = ANTHROPIC.read_event(b'data: {"error":{"message":"full","code":503}}\n\n').error
    assert error is not None
    assert error.status == 503
    assert json.loads(error.body) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "full"},
    }


def test_an_abort_is_one_streamed_and_whole() -> None:
    aborted = event("message_delta", delta={"stop_reason": "abort"}, usage={"output_tokens": 1})
    assert ANTHROPIC.read_event(aborted).finish == "abort"
    assert ANTHROPIC.is_aborted(b'{"content":[],"stop_reason": "abort"}')
    assert not ANTHROPIC.is_aborted(b'{"content":[{"text":"\\"stop_reason\\":\\"abort\\""}]}')


def test_usage_counts_the_whole_prompt_and_a_tools_input_cannot_fake_it() -> None:
    usage = {"input_tokens": 3, "cache_creation_input_tokens": 4, "cache_read_input_tokens": 5}
    fake = {"type": "tool_use", "input": {"usage": {"input_tokens": 1, "output_tokens": 1}}}
    answer = json.dumps({"usage": {**usage, "output_tokens": 6}, "content": [fake]}).encode()
    assert ANTHROPIC.read_usage(answer) == Usage(12, 6, 5)


def test_usage_is_found_in_the_last_bytes_of_a_long_answer() -> None:
    tail = b'xx"}],"stop_reason":"end_turn","usage":{"input_tokens":3,"output_tokens":6}}'
    assert ANTHROPIC.read_usage(tail) == Usage(3, 6)
    cached = b'xx"}],"usage":{"input_tokens":3,"cache_creation_input_tokens":4,"cache_read_input_tokens":5,"output_tokens":6}}'
    assert ANTHROPIC.read_usage(cached) == Usage(12, 6, 5)
    assert ANTHROPIC.read_usage(b'xx"}]}') is None

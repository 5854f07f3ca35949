"""Reading requests for responses, and their named events."""

import json
from typing import Any

import pytest

from millgate.dialects.contract import BadInputError, Usage
from millgate.dialects.responses import RESPONSES

read = RESPONSES.readers[b"/v1/responses"]


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def ask(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "input": "hi", **fields}).encode()


@pytest.mark.parametrize(
    ("fields", "may_retry"),
    [
        ({}, False),  # stored by default
        ({"store": True}, False),
        ({"store": None}, False),
        ({"store": False}, True),
        ({"store": False, "background": False}, True),
    ],
)
def test_what_the_engine_keeps_is_never_sent_twice(fields: dict[str, Any], may_retry: bool) -> None:
    assert read(ask(**fields)).may_retry is may_retry


def test_what_the_gate_needs_is_read() -> None:
    facts = read(ask(stream=True, max_output_tokens=7, previous_response_id="resp_1"))
    assert (facts.model, facts.stream, facts.max_tokens, facts.answers) == ("m", True, 7, 1)
    assert facts.previous_id == "resp_1"
    assert facts.include_usage is True


def test_inv_2_several_answers_are_counted() -> None:
    """llama.cpp makes a chat completion of the whole body."""
    assert read(ask(n=8)).answers == read(ask(n=1, n_cmpl=8)).answers == 8


def test_an_answer_is_bounded_under_llama_cpps_name_too() -> None:
    assert read(ask(n_predict=8)).max_tokens is None
    assert read(ask(n_predict=8, max_output_tokens=1)).max_tokens == 8
    assert read(ask(n_predict=-1, max_output_tokens=1)).max_tokens is None


@pytest.mark.parametrize("named", ["conv_1", {"id": "conv_1"}])
def test_a_conversation_is_something_kept_to_go_on_from_and_no_answer(named: Any) -> None:
    assert read(ask(conversation=named)).previous_id == "conversation conv_1"
    with pytest.raises(BadInputError) as caught:  # one of the two would be checked and the other used
        read(ask(conversation=named, previous_response_id="resp_1"))
    assert caught.value.field == "conversation"


def test_a_conversation_without_an_id_is_bad_input() -> None:
    """It was a fault of the gate: 500, and a traceback in the log."""
    with pytest.raises(BadInputError, match="id: the field is required"):
        read(ask(conversation={}))


@pytest.mark.parametrize("field", ["max_output_tokens", "store", "stream", "background"])
def test_a_field_that_stands_twice_is_refused(field: str) -> None:
    with pytest.raises(BadInputError, match="more than once"):
        read(f'{{"{field}":null,"input":"hi","{field}":null}}'.encode())


@pytest.mark.parametrize(
    ("field", "value"), [("max_output_tokens", 0), ("store", "yes"), ("tools", [1] * 2000), ("model", 5)]
)
def test_a_bad_value_is_refused_with_its_field(field: str, value: Any) -> None:
    with pytest.raises(BadInputError) as caught:
        read(ask(**{field: value}))
    assert caught.value.field == field


def test_the_openings_are_no_tokens_and_name_the_answer() -> None:
    for kind in ("response.created", "response.in_progress", "response.queued"):
        seen = RESPONSES.read_event(event(kind, response={"id": "resp_1", "usage": None}))
        assert (seen.content, seen.done, seen.silent, seen.answer_id) == (False, False, False, "resp_1")


@pytest.mark.parametrize(
    "kind",
    [
        "response.output_text.delta",
        "response.reasoning_text.delta",
        "response.function_call_arguments.delta",
        "response.refusal.delta",
    ],
)
def test_a_delta_is_content_and_carries_the_mark_of_the_middle_once(kind: str) -> None:
    data = event(kind, delta="a.delta\ndata: b")
    assert RESPONSES.read_event(data).content
    assert data.count(RESPONSES.unfinished) == 1


def test_an_item_is_neither_content_nor_end() -> None:
    seen = RESPONSES.read_event(event("response.output_item.done", item={"type": "message"}))
    assert (seen.content, seen.done, seen.error) == (False, False, None)


@pytest.mark.parametrize("kind", ["response.completed", "response.incomplete", "response.cancelled"])
def test_an_ending_carries_the_usage(kind: str) -> None:
    usage = {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 1}, "output_tokens": 7}
    seen = RESPONSES.read_event(event(kind, response={"id": "resp_1", "usage": usage}))
    assert (seen.done, seen.usage, seen.error) == (True, Usage(5, 7, 1), None)


def test_a_failed_response_is_an_error_that_ends_its_stream() -> None:
    response = {"id": "resp_1", "error": {"code": "server_is_overloaded", "message": "full"}}
    seen = RESPONSES.read_event(event("response.failed", response=response))
    assert seen.error is not None
    assert (seen.error.final, seen.error.status) == (True, 503)
    assert json.loads(seen.error.body)["error"]["message"] == "full"


def test_an_error_event_has_its_fields_inside_or_beside() -> None:
    flat = RESPONSES.read_event(event("error", code="rate_limit_exceeded", message="slower", param=None))
    nested = RESPONSES.read_event(event("error", error={"code": 503, "message": "full"}))
    assert flat.error is not None
    assert nested.error is not None
    assert (flat.error.status, nested.error.status) == (429, 503)
    assert json.loads(flat.error.body)["error"]["message"] == "slower"
    assert not flat.error.final


def test_done_says_nothing_in_this_dialect() -> None:
    assert not RESPONSES.read_event(b"data: [DONE]\n\n").done


def test_the_id_and_the_usage_of_a_whole_response() -> None:
    answer = {"id": "resp_abc-1", "usage": {"input_tokens": 5, "output_tokens": 7}, "output": []}
    body = json.dumps(answer).encode()
    assert RESPONSES.read_id(body) == "resp_abc-1"
    assert RESPONSES.read_usage(body) == Usage(5, 7)
    assert RESPONSES.read_usage(b'x"}],"usage":{"input_tokens":5,"output_tokens":7}}') == Usage(5, 7)
    cached = b'"usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":4},"output_tokens":7}}'
    assert RESPONSES.read_usage(b"{" + cached) == RESPONSES.read_usage(b'x"}],' + cached) == Usage(5, 7, 4)
    assert RESPONSES.read_id(b'{"object":"x","output":[{"id":"msg_1"}]}') is None

"""What holds for every dialect: no bytes crash a reader, and every refusal is said in the family's words."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from millgate.core.words import FailureKind, Reason
from millgate.dialects import BY_PATH, DIALECTS, dialect_of
from millgate.dialects.contract import BadInputError, Dialect, RequestFacts, Usage

ALL = list(DIALECTS.values())
by_name = pytest.mark.parametrize("dialect", ALL, ids=lambda each: each.name)

PATHS = {
    "openai": [
        b"/v1/chat/completions",
        b"/v1/chat/completions/batch",
        b"/v1/completions",
        b"/tokenize",
        b"/detokenize",
    ],
    "openai-pooling": [
        b"/v1/embeddings",
        b"/v2/embed",
        b"/pooling",
        b"/classify",
        b"/v1/rerank",
        b"/v2/rerank",
        b"/rerank",
        b"/v1/score",
        b"/score",
    ],
    "openai-audio": [b"/v1/audio/speech", b"/v1/audio/transcriptions", b"/v1/audio/translations"],
    "openai-responses": [b"/v1/responses", b"/v1/responses/input_tokens"],
    "anthropic": [b"/v1/messages", b"/v1/messages/count_tokens"],
}

fragments = st.sampled_from(
    [
        b"data: ",
        b"event: ",
        b"\n",
        b"\r\n",
        b"{",
        b"}",
        b'"type":',
        b'"usage":{',
        b'"input_tokens":',
        b"9999999999",
        b'"error":',
        b'"delta"',
        b'"content_block_delta"',
        b'"response.failed"',
        b'"id":"resp_1"',
        b"[",
        b"]",
        b",",
        b"null",
        b"[DONE]",
        b"\\u00",
        b"\xff",
        b"-1",
    ]
)
any_bytes = st.binary(max_size=200) | st.lists(fragments, max_size=25).map(b"".join)


def test_every_path_belongs_to_the_dialect_that_it_says() -> None:
    assert {path: dialect.name for path, dialect in BY_PATH.items()} == {
        path: name for name, paths in PATHS.items() for path in paths
    }


@pytest.mark.parametrize(
    ("path", "names_anthropic", "name"),
    [
        (b"/v1/models", False, "openai"),
        (b"/v1/models", True, "anthropic"),
        (b"/v1/chat/completions", True, "openai"),
        (b"/v1/messages", False, "anthropic"),
        (b"/v1/messages/batches", False, "anthropic"),
        (b"/v1/responses/resp_1", True, "openai-responses"),
        (b"/nothing", False, "openai"),
        (b"/nothing", True, "anthropic"),
    ],
)
def test_the_path_decides_and_where_it_does_not_the_header(
    path: bytes, names_anthropic: bool, name: str
) -> None:
    assert dialect_of(path, names_anthropic=names_anthropic).name == name


@by_name
@given(body=any_bytes)
@example(body=b"{}")
@example(body=b"[]")
@example(body=b'{"model":5}')
@example(body=b'{"a":' * 5000)
def test_no_bytes_crash_a_reader(dialect: Dialect, body: bytes) -> None:
    """Whatever comes is read, or refused as bad input and as nothing else."""
    for read in dialect.readers.values():
        with contextlib.suppress(BadInputError):
            assert isinstance(read(body), RequestFacts)
    for read_form in dialect.forms.values():
        for form in (body, b"--b\r\n" + body + b"\r\n--b--"):
            with contextlib.suppress(BadInputError):
                assert isinstance(read_form(form, b"b"), RequestFacts)


@by_name
@given(data=any_bytes)
def test_no_bytes_crash_what_watches_an_answer(dialect: Dialect, data: bytes) -> None:
    for event in (data, b"data: " + data + b"\n\n", b"event: x\r\ndata: " + data + b"\r\n\r\n"):
        dialect.read_event(event)
    usage = dialect.read_usage(data)
    assert usage is None or all(count is None or 0 <= count <= 10_000_000 for count in usage)
    dialect.read_id(data)
    dialect.is_aborted(data)


@by_name
def test_an_error_event_is_read_as_an_error_by_its_own_dialect(dialect: Dialect) -> None:
    """What we write into a broken stream must never be taken for content, nor its stream for finished."""
    words, message = dialect.refuser.broken_off(FailureKind.BROKEN)
    event = dialect.as_event(dialect.error(words.kind, words.code, message))
    read = dialect.read_event(event)
    assert event.endswith(b"\n\n")
    assert read.error is not None
    assert not read.error.final
    assert not read.done


def error_of(body: bytes) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(body)["error"]
    return error


@by_name
@pytest.mark.parametrize("status", [400, 401, 404, 405, 408, 413, 415, 429, 500, 503])
def test_a_complaint_is_dressed_by_its_status(dialect: Dialect, status: int) -> None:
    body = dialect.complaint(status, "some_code", "some words", "model", b"id-1")
    error = error_of(body)
    assert error["message"] == "some words"
    if dialect.family == "openai":
        assert error["code"] == "some_code"
        assert error["param"] == "model"
        assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    else:
        expected = {
            401: "authentication_error",
            404: "not_found_error",
            408: "timeout_error",
            413: "request_too_large",
            429: "rate_limit_error",
            500: "api_error",
            503: "overloaded_error",
        }
        assert error["type"] == expected.get(status, "invalid_request_error")
        assert json.loads(body)["request_id"] == "id-1"
        assert json.loads(body)["type"] == "error"


@by_name
@pytest.mark.parametrize("reason", list(Reason))
def test_every_refusal_fits_into_an_event_too(dialect: Dialect, reason: Reason) -> None:
    """A stream that was kept alive has its status; its refusal can only come as an event."""
    refusal = dialect.refuser.refuse(reason, 1.5, retry=True, request_id=b"id-1")
    event = dialect.as_event(refusal.body)
    read = dialect.read_event(event)
    assert read.error is not None
    assert error_of(refusal.body)["message"].encode() in event


def test_a_later_usage_completes_an_earlier_one() -> None:
    assert Usage(None, 7).after(Usage(5, None)) == Usage(5, 7)
    assert Usage(6, 7).after(Usage(5, 1)) == Usage(6, 7)
    assert Usage(6, 7).after(Usage(None, 1)) == Usage(6, 7)


def test_a_prompt_that_is_counted_again_without_its_cached_part_is_as_long_as_before() -> None:
    """Anthropic's `message_delta` may have `input_tokens` and leave out the cache's, which `message_start` counted."""
    read = DIALECTS["anthropic"].read_event
    start = {"input_tokens": 10, "cache_read_input_tokens": 900, "output_tokens": 1}
    begun = read(b"data: " + json.dumps({"type": "message_start", "message": {"usage": start}}).encode())
    ended = read(b'data: {"type":"message_delta","usage":{"input_tokens":10,"output_tokens":70}}')
    assert begun.usage is not None
    assert ended.usage is not None
    assert ended.usage.after(begun.usage) == Usage(910, 70, 900)


ARRAYS = {
    "messages": [{"role": "user", "content": "a"}],
    "tools": [{"name": "f", "parameters": {"model": {}, "more": {"model": {}, "stream": {}}}}],
    "input": ["say", '"model": "model"'],
    "prompt": ["[", "]"],
    "documents": ["a", "b"],
    "texts": ["a", "b"],
    "stop_sequences": ["model", "model"],
    "nobody knows": [{"model": 1, "more": {"model": 2}}],
}


@pytest.mark.parametrize("path", [path for each in ALL for path in each.readers])
@pytest.mark.parametrize("last", ARRAYS)
@pytest.mark.parametrize("padding", [0, 5_000], ids=["short", "long"])
def test_a_name_in_an_array_is_none_of_the_bodys_own_and_a_second_one_is_refused(
    path: bytes, last: str, padding: int
) -> None:
    read = BY_PATH[path].readers[path]
    arrays = {name: array for name, array in ARRAYS.items() if name != last} | {last: ARRAYS[last]}
    fields = {"max_tokens": 5, **arrays, "model": "m", "more": "[" * padding}
    assert read(json.dumps(fields).encode()).model == "m"

    for twice in ({"model": "m", **fields}, {**arrays, "model": "m", "max_tokens": 5}):
        doubled = json.dumps(twice)[:-1] + ',"model":"m","more":"' + "]" * padding + '"}'
        with pytest.raises(BadInputError, match="more than once"):
            read(doubled.encode())

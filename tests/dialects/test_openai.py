"""Reading OpenAI requests and answers."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from millgate.dialects.bodies import MOST_ANSWERS
from millgate.dialects.contract import BadInputError, RequestFacts, Usage
from millgate.dialects.openai import OPENAI

read_chat = OPENAI.readers[b"/v1/chat/completions"]
read_completion = OPENAI.readers[b"/v1/completions"]


def chat(**fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode()


def complaint(body: bytes) -> BadInputError:
    with pytest.raises(BadInputError) as caught:
        read_chat(body)
    return caught.value


def test_a_plain_request_has_the_defaults() -> None:
    assert read_chat(chat())._replace(shape=None) == RequestFacts(
        "", stream=False, max_tokens=None, answers=1, include_usage=None
    )


def test_what_the_gate_needs_is_read() -> None:
    body = chat(model="m", stream=True, max_tokens=7, n=3, stream_options={"include_usage": True, "more": 1})
    assert read_chat(body)._replace(shape=None) == RequestFacts(
        "m", stream=True, max_tokens=7, answers=3, include_usage=True
    )


def test_nulls_mean_absent() -> None:
    body = chat(model=None, stream=None, max_tokens=None, n=None, stop=None, stream_options=None, tools=None)
    assert read_chat(body)._replace(shape=None) == read_chat(chat())._replace(shape=None)


def test_max_completion_tokens_wins() -> None:
    assert read_chat(chat(max_tokens=5, max_completion_tokens=9)).max_tokens == 9


def test_unknown_fields_and_content_parts_are_not_judged() -> None:
    parts = [{"role": "user", "content": [{"type": "hologram", "x": {"n": -5}}], "max_tokens": "deep"}]
    assert read_chat(chat(messages=parts, api_base="http://evil", min_p=0.1)).answers == 1


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("a", 1), (["a"], 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1, 2], [3]], 2), ([], 1), (None, 1)],
)
def test_a_batch_of_prompts_is_counted(prompt: Any, count: int) -> None:
    assert read_completion(json.dumps({"prompt": prompt, "n": 2}).encode()).answers == 2 * count


@pytest.mark.parametrize(
    ("said", "answers"), [({"n_cmpl": 8}, 8), ({"n": 1, "n_cmpl": 8}, 8), ({"n": 8, "n_cmpl": 1}, 8)]
)
def test_inv_2_answers_are_counted_under_either_name(said: dict[str, int], answers: int) -> None:
    """llama.cpp reads `n_cmpl` first; other engines know only `n`."""
    assert read_chat(chat(**said)).answers == answers
    assert read_completion(json.dumps({"prompt": "a", **said}).encode()).answers == answers
    batch = {"messages": [[{"role": "user", "content": "a"}]] * 2, **said}
    assert OPENAI.readers[b"/v1/chat/completions/batch"](json.dumps(batch).encode()).answers == 2 * answers


@pytest.mark.parametrize(
    ("said", "bound"),
    [
        ({"n_predict": 8}, None),
        ({"n_predict": 8, "max_tokens": 1}, 8),
        ({"n_predict": 1, "max_tokens": 8}, 8),
        ({"n_predict": 0, "max_tokens": 2}, 2),
        ({"n_predict": -1}, None),
        ({"n_predict": -1, "max_tokens": 1}, None),
        ({"n_predict": None, "max_tokens": 8}, 8),
    ],
)
def test_an_answer_is_bounded_under_either_name(said: dict[str, int | None], bound: int | None) -> None:
    """llama.cpp reads `n_predict` first, and below 0 as no bound; other engines know only `max_tokens`."""
    assert read_chat(chat(**said)).max_tokens == bound
    assert read_completion(json.dumps({"prompt": "a", **said}).encode()).max_tokens == bound
    batch = {"messages": [[{"role": "user", "content": "a"}]], **said}
    assert OPENAI.readers[b"/v1/chat/completions/batch"](json.dumps(batch).encode()).max_tokens == bound


@pytest.mark.parametrize(
    ("said", "count"),
    [
        ({"prompt_embeds": "AAAA"}, 1),
        ({"prompt_embeds": ["AAAA"] * 8}, 8),
        ({"prompt": None, "prompt_embeds": ["AAAA"] * 8}, 8),
        ({"prompt": ["a", "b"], "prompt_embeds": ["AAAA"] * 8}, 10),
        ({"prompt": "a", "prompt_embeds": None}, 1),
    ],
)
def test_inv_2_prompts_that_come_as_embeddings_are_prompts_too(said: dict[str, Any], count: int) -> None:
    """vLLM runs them beside those in `prompt`."""
    assert read_completion(json.dumps({**said, "n": 2}).encode()).answers == 2 * count


def test_too_many_embedded_prompts_are_named() -> None:
    with pytest.raises(BadInputError, match="prompt_embeds: expected a string or at most 1024 strings"):
        read_completion(json.dumps({"prompt_embeds": ["AAAA"] * 1025}).encode())


def test_best_of_counts_what_is_computed() -> None:
    assert read_completion(b'{"prompt":"a","n":2,"best_of":5}').answers == 5


@pytest.mark.parametrize("prompt", ['{"a":1}', "5", "true", '["a",[', '["a"' + ',"a"' * 2000 + "]"])
def test_a_prompt_that_is_none_is_named(prompt: str) -> None:
    with pytest.raises(BadInputError) as caught:
        read_completion(f'{{"prompt":{prompt}}}'.encode())
    assert caught.value.field == "prompt" or "JSON" in caught.value.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 10**9),
        ("n", 0),
        ("max_tokens", -1),
        ("max_tokens", 10**12),
        ("max_tokens", 10**40),
        ("max_tokens", "5"),
        ("max_tokens", True),
        ("max_tokens", 1.5),
        ("max_completion_tokens", 0),
        ("stream", "true"),
        ("stream", 1),
        ("stop", ["x"] * 1000),
        ("stop", 5),
        ("logit_bias", {str(i): 1 for i in range(5000)}),
        ("tools", [{}] * 2000),
        ("messages", []),
        ("messages", "hi"),
        ("model", "x" * 10_000),
        ("model", 5),
        ("model", "a\nb"),
        ("model", "a\0b"),
    ],
)
def test_a_bad_value_is_refused_with_field_and_limit(field: str, value: Any) -> None:
    error = complaint(chat(**{field: value}))
    assert error.field == field
    assert error.message.startswith(field)
    assert len(error.message) < 200


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("number", ["100.0", "1e2"])
def test_a_whole_number_may_be_written_as_one_with_a_fraction(field: str, number: str) -> None:
    """As clients write it whose numbers are all doubles; vLLM, SGLang and llama.cpp take it."""
    body = chat(**{field: 7}).replace(b"7", number.encode())
    assert read_chat(body).max_tokens == 100


def test_a_missing_field_is_named() -> None:
    assert complaint(b'{"model":"m"}').field == "messages"


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "empty"),
        (b'{"messages":[1]', "truncated"),
        (b'{"messages":[1]} x', "byte 1"),
        (b'{"messages":[1],"x":NaN}', "byte 20"),
        (b'{"messages":[1],"x":Infinity}', "byte 20"),
        (b'{"messages":[1],"x":"\x01"}', "byte 21"),
        (b'{"messages":[1],"x":"\xff"}', "byte 21"),
        (b'{"messages":[1],"x":"\\ud800"}', ""),
        (b'{"messages":[1],"x":"\\udc00"}', "byte 27"),
        (b"\xef\xbb\xbf" + chat(), "byte 0"),
        (chat().decode().encode("utf-16"), "byte 0"),
        (b'{"messages":[1],"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "deep"),
        (b"[1]", "object"),
    ],
)
def test_what_is_no_json_is_refused_with_its_place_and_no_echo(body: bytes, word: str) -> None:
    error = complaint(body)
    assert word in error.message
    assert "messages" not in error.message


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(noise: bytes) -> None:
    with contextlib.suppress(BadInputError):
        read_chat(noise)


def test_an_error_never_repeats_what_was_sent() -> None:
    secret = "sk-secret-prompt"
    for body in (
        chat(stop=5, x=secret),
        chat(model=secret + "\n"),
        f'{{"{secret}":'.encode(),
        secret.encode(),
    ):
        assert secret not in complaint(body).message


# ---- streams


def chunk(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x"},
        {"reasoning_content": "x"},
        {"reasoning": "x"},
        {"tool_calls": [{"index": 0}]},
        {"refusal": "no"},
    ],
)
def test_text_reasoning_and_tool_calls_are_content(delta: dict[str, Any]) -> None:
    assert OPENAI.read_event(chunk(choices=[{"delta": delta, "finish_reason": None}])).content


@pytest.mark.parametrize(
    "delta",
    [{}, {"role": "assistant"}, {"role": "assistant", "content": ""}, {"content": None, "tool_calls": []}],
)
def test_a_role_or_an_empty_delta_is_no_content(delta: dict[str, Any]) -> None:
    event = OPENAI.read_event(chunk(choices=[{"delta": delta, "finish_reason": None}]))
    assert not event.content
    assert not event.silent


def test_a_completion_chunk_has_text() -> None:
    assert OPENAI.read_event(chunk(choices=[{"text": "x", "finish_reason": None}])).content


def test_an_end_without_content_counts_as_content() -> None:
    event = OPENAI.read_event(chunk(choices=[{"delta": {}, "finish_reason": "stop"}]))
    assert (event.content, event.finish) == (True, "stop")


def test_usage_alone_is_told_from_usage_beside_content() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 4}
    alone = OPENAI.read_event(chunk(choices=[], usage=usage))
    beside = OPENAI.read_event(chunk(choices=[{"delta": {"content": "x"}}], usage=usage))
    assert alone.usage == beside.usage == Usage(3, 4)
    assert (alone.usage_only, beside.usage_only) == (True, False)


def test_done_comments_and_blanks_are_told_apart() -> None:
    assert OPENAI.read_event(b"data: [DONE]\n\n").done
    assert OPENAI.read_event(b"data:[DONE]\r\n\r\n").done
    assert OPENAI.read_event(b": ping\n\n").silent
    assert OPENAI.read_event(b"\n").silent


def test_the_null_with_which_llama_cpp_begins_to_read_one_of_several_prompts_is_no_token() -> None:
    event = OPENAI.read_event(b"data: null\n\n")
    assert (event.silent, event.content) == (True, False)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"code": 503}, 503),
        ({"code": 429, "message": "x"}, 429),
        ({"code": "rate_limit_exceeded"}, 429),
        ({"type": "overloaded"}, 503),
        ({"code": "invalid_api_key", "type": "invalid_request_error"}, 401),
        ({"code": "insufficient_quota", "type": "insufficient_quota"}, 429),
        ({"code": "context_length_exceeded"}, 400),
        ({"code": "invalid_prompt"}, 400),
        ({"code": "image_too_large"}, 400),
        ({"code": "vector_store_timeout"}, 502),
        ({"code": 7}, 502),
        ({"message": "x"}, 502),
        ("just text", 502),
    ],
)
def test_an_error_event_means_a_status(error: Any, status: int) -> None:
    read = OPENAI.read_event(chunk(error=error)).error
    assert read is not None
    assert read.status == status
    assert json.loads(read.body) == {"error": error}


def test_a_null_error_is_none() -> None:
    assert OPENAI.read_event(chunk(error=None, choices=[])).error is None


def test_an_event_that_cannot_be_read_counts_as_content() -> None:
    assert OPENAI.read_event(b"data: {nonsense\n\n").content
    assert OPENAI.read_event(b"data: " + b"[" * 50_000 + b"\n\n").content


def test_every_unfinished_event_of_the_usual_engines_says_so_once() -> None:
    vllm = json.dumps(
        {"choices": [{"delta": {"content": 'a "finish_reason":null b'}, "finish_reason": None}]},
        separators=(",", ":"),
    )
    assert vllm.encode().count(OPENAI.unfinished) == 1


# ---- whole answers


def test_the_last_usage_counts_and_text_cannot_fake_it() -> None:
    fake = 'usage":{"prompt_tokens":99,"completion_tokens":99}'
    body = {
        "choices": [{"message": {"content": fake}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }
    for separators in ((",", ":"), (", ", ": ")):
        assert OPENAI.read_usage(json.dumps(body, separators=separators).encode()) == Usage(1, 2)


@pytest.mark.parametrize("tokens", ["-5", "99999999999", "1.5", '"5"', "null"])
def test_usage_that_makes_no_sense_is_unknown(tokens: str) -> None:
    text = f'{{"usage":{{"prompt_tokens":{tokens},"completion_tokens":3}}}}'
    assert OPENAI.read_usage(text.encode()) == Usage(None, 3)


@pytest.mark.parametrize(
    ("details", "cached"),
    [
        ({"cached_tokens": 5}, 5),
        ({"audio_tokens": None, "cached_tokens": 0}, 0),
        ({"cached_tokens": -5}, None),
        ({"cached_tokens": 10**12}, None),
        ({"cached_tokens": "5 of them"}, None),
        ({"audio_tokens": 123456789}, None),
        ({}, None),
        (None, None),
        (["a shape that nobody expects"], None),
    ],
)
def test_cached_tokens_are_read_from_streams_and_answers_and_cost_no_other_count(
    details: object, cached: int | None
) -> None:
    usage = {"prompt_tokens": 9, "total_tokens": 11, "completion_tokens": 2, "prompt_tokens_details": details}
    answer = json.dumps({"choices": [], "usage": usage}).encode()

    assert OPENAI.read_usage(answer) == Usage(9, 2, cached)
    assert OPENAI.read_event(chunk(choices=[], usage=usage)).usage == Usage(9, 2, cached)


@pytest.mark.parametrize(
    ("behind", "cached"),
    [
        (b"", None),
        (b',"total_tokens":11,"prompt_tokens_details":null', None),
        (b',"prompt_tokens_details":{"audio_tokens":1}', None),
        (b',"prompt_tokens_details":{"cached_tokens":4}', 4),
        (b',"cached_tokens":5', 5),  # beside the others, as some providers write it
    ],
)
@pytest.mark.parametrize(
    "end", [b"}", b',"prompt_logprobs":null} \n', b',"metadata":{"a":"}"}}', b"}}", b"}x"]
)
def test_usage_is_read_whatever_stands_in_it_and_behind_it(
    behind: bytes, cached: int | None, end: bytes
) -> None:
    answer = b'{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2%b}%b' % (behind, end)

    assert OPENAI.read_usage(answer) == Usage(9, 2, cached)


def test_an_answer_without_usage_has_none() -> None:
    assert OPENAI.read_usage(b'{"choices":[]}') is None
    assert OPENAI.read_usage(b'{"id":"}","usage":') is None


def test_an_abort_is_seen_and_text_cannot_fake_it() -> None:
    assert OPENAI.is_aborted(b'{"choices":[{"finish_reason": "abort"}]}')
    assert OPENAI.is_aborted(b'{"choices":[{"finish_reason": "error"}]}')
    assert not OPENAI.is_aborted(json.dumps({"content": 'a "finish_reason":"abort" b'}).encode())


# ---- what we write


def test_usage_is_asked_for_without_touching_anything_else() -> None:
    body = b'  {"model":"m", "stream":true}'
    asked = json.loads(OPENAI.with_usage(body))
    assert asked.pop("stream_options") == {"include_usage": True}
    assert asked == json.loads(body)


def test_errors_have_all_four_fields() -> None:
    error = json.loads(OPENAI.error("t", None, "m", "f"))["error"]
    assert error == {"message": "m", "type": "t", "param": "f", "code": None}
    event = OPENAI.as_event(OPENAI.error("t", "c", "m"))
    assert OPENAI.read_event(event).error is not None


def test_the_limit_of_answers_is_said() -> None:
    assert str(MOST_ANSWERS) in complaint(chat(n=MOST_ANSWERS + 1)).message


def test_scoring_a_prompt_asks_a_completion_for_no_tokens_and_its_echo() -> None:
    asks = {"model": "m", "prompt": ["a b", "c"], "max_tokens": 0, "logprobs": 1}
    facts = read_completion(json.dumps(asks | {"echo": True}).encode())
    assert (facts.max_tokens, facts.answers) == (0, 2)
    with pytest.raises(BadInputError, match="max_tokens: 0 without echo; allowed: an integer from 1"):
        read_completion(json.dumps(asks).encode())


read_batch = OPENAI.readers[b"/v1/chat/completions/batch"]


def test_a_batch_has_as_many_answers_as_conversations() -> None:
    said = [{"role": "user", "content": "hi"}]
    body = json.dumps({"model": "m", "messages": [said, said, said], "max_tokens": 7, "n": 2}).encode()
    assert read_batch(body)._replace(shape=None) == RequestFacts(
        "m", stream=False, max_tokens=7, answers=6, include_usage=True
    )
    assert read_batch(chat()).answers == 1, "one conversation is the engine's to refuse"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"messages":[]}', "messages"),
        (b'{"messages":"hi"}', "messages"),
        (b'{"model":"m"}', "messages"),
        (b'{"messages":[[{}]],"messages":[[{}],[{}]]}', "messages"),
        (b'{"messages":[[{}]],"stream":true}', "stream"),
        (b'{"messages":[' + b"[{}]," * 2000 + b"[{}]]}", "messages"),
        (b'{"messages":[[' + b"{}," * 40_000 + b"{}],[" + b"{}," * 40_000 + b"{}]]}", "messages"),
    ],
    ids=["none", "text", "missing", "twice", "a stream", "too many", "too many messages in all"],
)
def test_what_is_wrong_with_a_batch_is_named(body: bytes, field: str) -> None:
    with pytest.raises(BadInputError) as caught:
        read_batch(body)
    assert caught.value.field == field


def test_an_event_of_tens_of_thousands_of_objects_is_content_and_not_read() -> None:
    choices: list[dict[str, Any]] = [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    assert OPENAI.read_event(chunk(choices=choices * 15_000)).finish == "stop"
    event = OPENAI.read_event(chunk(choices=choices + [{}] * 66_000))
    assert (event.content, event.finish) == (True, None)

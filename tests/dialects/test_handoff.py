"""What two engines are told when one reads the prompt and the other answers, and what may not be handed over."""

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from millgate.dialects.contract import RequestFacts, Usage
from millgate.dialects.handoff import (
    handed,
    is_given_up,
    is_lost,
    may_bootstrap,
    may_hand_over,
    to_both,
    to_decode,
    to_prefill,
    with_cached,
)
from millgate.dialects.openai import OPENAI

CHAT = b"/v1/chat/completions"
PARAMS = {"do_remote_prefill": True, "remote_block_ids": [[1]], "unknown": {"a": [1.50, None]}}


def body(**more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **more}).encode()


def facts(given_body: bytes, path: bytes = CHAT) -> RequestFacts:
    return OPENAI.readers[path](given_body)


@pytest.mark.parametrize("bound", ["max_tokens", "max_completion_tokens", None])
def test_the_first_engine_writes_one_token_and_keeps_the_kv(bound: str | None) -> None:
    limits = {} if bound is None else {bound: 50}
    told = json.loads(to_prefill(body(stream=True, stream_options={"a": 1}, min_tokens=4, seed=7, **limits)))
    assert told == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "seed": 7,
        "stream": False,
        bound or "max_tokens": 1,
        "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
    }


def test_of_two_bounds_one_is_left_as_vllm_refuses_both() -> None:
    told = json.loads(to_prefill(body(max_tokens=50, max_completion_tokens=60)))
    assert told["max_completion_tokens"] == 1
    assert "max_tokens" not in told


def test_a_bound_of_null_is_none() -> None:
    told = json.loads(to_prefill(body(max_tokens=9, max_completion_tokens=None)))
    assert told["max_tokens"] == 1
    assert "max_completion_tokens" not in told


@pytest.mark.parametrize("end", [b"", b" \n", b"\r\n"])
def test_the_second_engine_gets_the_clients_bytes_and_the_object_as_it_came(end: bytes) -> None:
    params = b'{"a": 1.50,"b":[ ]}'
    whole = body() + end
    told = to_decode(whole, params)
    assert told == body()[:-1] + b',"kv_transfer_params":' + params + b"}" + end
    assert json.loads(told)["kv_transfer_params"] == {"a": 1.5, "b": []}


def said(**more: Any) -> bytes:
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}}
    answer = {"choices": [{"finish_reason": "length"}], "usage": usage, "kv_transfer_params": PARAMS}
    return json.dumps({**answer, **more}).encode()


def test_what_is_handed_over_is_taken_byte_for_byte_with_the_usage() -> None:
    found = handed(said())
    assert found is not None
    assert json.loads(found.params) == PARAMS
    assert found.params in said()
    assert found.usage == Usage(9, 1, 4)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b"{}",
        said(kv_transfer_params=None),
        said(kv_transfer_params=[1]),
        said(choices=[]),
        said(choices=[{"finish_reason": "abort"}]),
        said(choices=[{"finish_reason": None}]),
        said(choices=7),
        b'{"choices":' + b"[" * 100_000,
    ],
)
def test_an_answer_that_kept_nothing_hands_nothing_over(answer: bytes) -> None:
    assert handed(answer) is None


def test_a_usual_request_may_be_handed_over() -> None:
    assert may_hand_over(CHAT, facts(body(max_tokens=50)), body(max_tokens=50))
    assert may_hand_over(CHAT, facts(body()), body())


@pytest.mark.parametrize(
    "more",
    [
        {"n": 2},
        {"max_tokens": 1},
        {"prompt_logprobs": 0},
        {"use_beam_search": True},
        {"prompt_embeds": "AAAA"},
        {"kv_transfer_params": {}},
        {"bootstrap_room": 1},
    ],
    ids=lambda more: next(iter(more)),
)
def test_what_vllm_cannot_hand_over_is_not(more: dict[str, Any]) -> None:
    assert not may_hand_over(CHAT, facts(body(**more)), body(**more))


@pytest.mark.parametrize("path", [b"/v1/embeddings", b"/v1/messages", b"/v1/responses", b"/v1/rerank"])
def test_other_paths_are_not_handed_over(path: bytes) -> None:
    assert not may_hand_over(path, facts(body()), body())


@pytest.mark.parametrize(
    ("beginning", "lost"),
    [
        (b'data: {"error":{"message":"no"}}\n\n', True),
        (b'data:{ "error": 1}\n\n', True),
        (b'{"choices":[{"finish_reason": "error"}]}', True),
        (b'data: {"choices":[{"delta":{"content":"\\"finish_reason\\": \\"error\\""}}]}\n\n', False),
        (b'data: {"choices":[{"delta":{"content":"error"},"finish_reason":null}]}\n\n', False),
    ],
)
def test_a_good_status_may_begin_with_bad_news(beginning: bytes, lost: bool) -> None:
    assert is_lost(beginning) is lost


@given(st.integers(0, 99_999_999), st.integers(0, 99_999_999))
def test_cached_tokens_are_corrected_in_as_many_bytes(reported: int, own: int) -> None:
    before = b'{"usage":{"prompt_tokens_details":{"cached_tokens":%d}}}' % reported
    after = with_cached(before, own)
    assert len(after) == len(before)
    expected = own if len(str(own)) <= len(str(reported)) else reported
    assert json.loads(after)["usage"]["prompt_tokens_details"]["cached_tokens"] == expected


@given(st.text())
def test_text_is_never_corrected(text: str) -> None:
    whole = json.dumps({"content": f'{text} "cached_tokens": 77, {text}'}).encode()
    assert with_cached(whole, 5) == whole


def test_both_of_sglangs_engines_get_the_body_and_a_room() -> None:
    given_body = body(seed=7)
    told = to_both(given_body, "10.0.0.1", 8998, [2**63 - 1])
    assert told.startswith(given_body[:-1])
    assert json.loads(told) == json.loads(given_body) | {
        "bootstrap_host": "10.0.0.1",
        "bootstrap_port": 8998,
        "bootstrap_room": 2**63 - 1,
    }


def test_several_sequences_get_lists() -> None:
    told = json.loads(to_both(body(n=2), "p", 8998, [1, 2]))
    assert (told["bootstrap_host"], told["bootstrap_port"]) == (["p", "p"], [8998, 8998])
    assert told["bootstrap_room"] == [1, 2]


@pytest.mark.parametrize(
    ("path", "more", "may"),
    [
        (CHAT, {}, True),
        (CHAT, {"n": 4, "max_tokens": 1}, True),
        (b"/v1/completions", {"prompt": ["a", "b"], "echo": True}, True),
        (b"/v1/messages", {}, False),
    ],
)
def test_sglang_takes_chats_and_completions_on_two_engines(
    path: bytes, more: dict[str, Any], may: bool
) -> None:
    assert may_bootstrap(path, facts(body(**more))) is may


@pytest.mark.parametrize(
    ("said", "has_given_up"),
    [
        (b'data: {"error":{"message":"x"}}\n\n', True),
        (b': ping\n\ndata: {"error":{"message":"x"}}\n\n', True),
        (b'{"error":{"message":"x"}}', True),
        (b'data: {"choices":[{"finish_reason":"abort"}]}\n\n', True),
        (b'data: {"choices":[{"finish_reason":"length"}]}\n\ndata: [DONE]\n\n', False),
        (b'{"choices":[{"message":{"content":"{\\"error\\": \\"finish_reason\\":\\"abort\\""}}]}', False),
    ],
)
def test_an_engine_that_has_given_up_says_so(said: bytes, has_given_up: bool) -> None:
    assert is_given_up(said) is has_given_up

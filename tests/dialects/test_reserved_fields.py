"""Fields that tell an engine whose cache to use: found on every path, however they are written."""

import json
from typing import Any

import pytest

from millgate.dialects import BY_PATH
from millgate.dialects.contract import RequestFacts
from millgate.dialects.far_reading import Question, answer

RESERVED = (
    "kv_transfer_params",
    "ec_transfer_params",
    "session_params",
    "disaggregated_params",
    "migration_request",
    "with_cache",
    "preserve_cache",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "bootstrap_of_a_later_release",
)
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/chat/completions/batch": {"messages": [[{"role": "user", "content": "hi"}]]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
    "/v1/embeddings": {"input": "hi"},
    "/v2/embed": {"texts": ["hi"]},
    "/pooling": {"input": "hi"},
    "/classify": {"input": "hi"},
    "/v1/rerank": {"query": "q", "documents": ["d"]},
    "/v1/score": {"text_1": "a", "text_2": "b"},
    "/v1/audio/speech": {"input": "hi"},
}


def found(path: str, body: bytes) -> str:
    return BY_PATH[path.encode()].readers[path.encode()](body).reserved


def test_every_path_with_a_json_body_is_tried() -> None:
    paths = {path.decode() for path, dialect in BY_PATH.items() if path in dialect.readers}
    assert paths - set(BODIES) == {"/v2/rerank", "/rerank", "/score"}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("field", RESERVED)
@pytest.mark.parametrize(
    "value", [{"do_remote_prefill": True, "remote_block_ids": [[1]]}, None, [1, 2], "h", 5]
)
def test_a_reserved_field_is_found(path: str, field: str, value: Any) -> None:
    assert found(path, json.dumps({"model": "m", **BODIES[path]}).encode()) == ""
    assert found(path, json.dumps({"model": "m", **BODIES[path], field: value}).encode()) == field
    assert found(path, json.dumps({field: value, "model": "m", **BODIES[path]}, indent=2).encode()) == field


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages"])
@pytest.mark.parametrize(
    ("spelled", "field"),
    [
        (r"kv_transfer\u005fparams", "kv_transfer_params"),
        (r"kv_transfer_p\u0061rams", "kv_transfer_params"),
        (r"\u0062ootstrap_host", "bootstrap_host"),
        (r"bootstrap\u005Froom", "bootstrap_room"),
        (r"session_param\u0073", "session_params"),
        (r"with\u005fcache", "with_cache"),
        (r"m\u0069gration_request", "migration_request"),
    ],
)
@pytest.mark.parametrize("content", ["hi", "x" * 5_000, "x" * 70_000], ids=["short", "longer", "long"])
def test_an_escaped_name_is_found_in_a_body_of_any_length(
    path: str, spelled: str, field: str, content: str
) -> None:
    body = json.dumps({"model": "m", **BODIES[path], "user": content}).encode()
    assert found(path, body[:-1] + b',"%b":{}}' % spelled.encode()) == field


@pytest.mark.parametrize("content", ["hi", "x" * 5_000, "x" * 70_000], ids=["short", "longer", "long"])
def test_a_name_twice_is_found_and_so_is_one_behind_arrays(content: str) -> None:
    body = json.dumps(
        {
            "kv_transfer_params": None,
            "messages": [{"role": "user", "content": content}],
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "stop": ["a", "b"],
            "kv_transfer_params ": 1,
        }
    ).replace('params ":', 'params":')
    assert found("/v1/chat/completions", body.encode()) == "kv_transfer_params"


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("kv_transfer_params", "kv_transfer_params"),
        (r"kv_transfer\u005fparams", "kv_transfer_params"),
        (r"k\u0076_transfer_params", "kv_transfer_params"),
        ("ec_transfer_params", "ec_transfer_params"),
    ],
)
@pytest.mark.parametrize("value", ["{}", '"x"', "[1]"])
def test_the_hand_over_is_found_among_the_extras_that_vllm_copies(name: str, field: str, value: str) -> None:
    body = f'{{"messages":[{{"role":"user","content":"hi"}}],"vllm_xargs":{{"a":1,"{name}":{value}}}}}'
    assert found("/v1/chat/completions", body.encode()) == f"vllm_xargs.{field}"


@pytest.mark.parametrize(
    "more",
    [
        {"user": "kv_transfer_params"},
        {"user": 'say "kv_transfer_params" and "bootstrap_host"'},
        {"metadata": {"kv_transfer_params": 1, "bootstrap_host": "h"}},
        {"tools": [{"function": {"parameters": {"properties": {"session_params": {}}}}}]},
        {"extra_body": {"kv_transfer_params": {}}},
        {"vllm_xargs": {"a_params": 1}},
        {"vllm_xargs": "kv_transfer_params"},
        {"my_params": 1, "kv_transfer_params_": 2, "xbootstrap_host": 3},
        {"use_cache": True, "prompt_cache_key": "with_cache", "metadata": {"preserve_cache": "1"}},
    ],
)
def test_what_no_engine_reads_there_passes(more: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": '"bootstrap_host"'}], **more}
    assert found("/v1/chat/completions", json.dumps(body).encode()) == ""


@pytest.mark.parametrize("name", ["bootstrap_" + "x" * 100_000, "x" * 100_000 + "_transfer_params"])
@pytest.mark.parametrize("body", ['{"prompt":"hi","%s":1}', '{"prompt":"hi","vllm_xargs":{"%s":1}}'])
def test_of_a_name_without_end_the_beginning_is_told(name: str, body: str) -> None:
    told = found("/v1/completions", (body % name).encode())
    assert len(told) <= len("vllm_xargs.") + 64
    assert bool(told) is ("xargs" not in body or name.endswith("params"))


def test_a_frame_that_was_seen_with_a_reserved_field_still_has_it() -> None:
    for content in ("a", "b", "c"):
        body = {"messages": [{"role": "user", "content": content}], "bootstrap_port": 8998}
        assert found("/v1/chat/completions", json.dumps(body).encode()) == "bootstrap_port"
        del body["bootstrap_port"]
        assert found("/v1/chat/completions", json.dumps(body).encode()) == ""


def test_the_reader_of_long_bodies_finds_it_too() -> None:
    body = json.dumps({"prompt": "x" * 2_000_000, "kv_transfer_params": {}}).encode()
    facts = answer(Question(b"/v1/completions", b"", len(body)), body).facts
    assert facts is not None
    assert RequestFacts(*facts).reserved == "kv_transfer_params"

"""Embeddings, rerank and score: as many answers as inputs, no output."""

import json
from typing import Any

import pytest

from millgate.dialects.contract import BadInputError, RequestFacts, Usage
from millgate.dialects.pooling import POOLING


def read(path: bytes, **fields: Any) -> RequestFacts:
    return POOLING.readers[path](json.dumps({"model": "m", **fields}).encode())


@pytest.mark.parametrize(
    ("given", "answers"),
    [("a", 1), (["a", "b", "c"], 3), ([1, 2, 3], 1), ([[1, 2], [3]], 2), ([{"text": "a"}, {}], 2)],
)
def test_inputs_are_counted(given: Any, answers: int) -> None:
    facts = read(b"/v1/embeddings", input=given)
    assert (facts.answers, facts.max_tokens, facts.stream) == (answers, 0, False)


@pytest.mark.parametrize("path", [b"/v1/rerank", b"/v2/rerank", b"/rerank"])
def test_documents_are_counted(path: bytes) -> None:
    assert read(path, query="q", documents=["a", {"text": "b"}]).answers == 2


@pytest.mark.parametrize("path", [b"/v1/score", b"/score"])
def test_pairs_are_counted(path: bytes) -> None:
    assert read(path, text_1="q", text_2=["a", "b", "c"]).answers == 3
    assert read(path, queries="q", documents=["a", "b"]).answers == 2


@pytest.mark.parametrize(
    ("path", "fields", "field"),
    [
        (b"/v1/embeddings", {}, "input"),
        (b"/v1/embeddings", {"input": 5}, "input"),
        (b"/v1/embeddings", {"input": ["a"] * 3000}, "input"),
        (b"/v1/rerank", {"query": "q"}, "documents"),
        (b"/v1/rerank", {"documents": ["a"] * 3000}, "documents"),
        (b"/v1/rerank", {"documents": "a"}, "documents"),
    ],
)
def test_what_cannot_be_counted_is_named(path: bytes, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInputError) as caught:
        read(path, **fields)
    assert caught.value.field == field


def test_usage_has_no_output() -> None:
    answer = b'{"data":[],"usage":{"prompt_tokens":8,"total_tokens":8}}'
    assert POOLING.read_usage(answer) == Usage(8, 0)
    assert POOLING.read_usage(b"{}") == Usage(None, 0)

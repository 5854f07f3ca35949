"""Embeddings, rerank, score and pooling: as many answers as inputs, no output."""

import json
from typing import Any

import pytest

from millgate.core.sizing.service_demand import PromptSizes
from millgate.dialects.contract import BadInputError, RequestFacts, Usage
from millgate.dialects.media import MEDIA_TOKENS
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


@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({"input": ["a", "b"]}, 2),
        ({"messages": [{"role": "user", "content": "a"}]}, 1),
        ({"messages": [[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]]}, 2),
        ({"data": {"image": "a"}}, 1),
        ({"data": ["a", "b", "c"]}, 3),
    ],
)
def test_what_is_pooled_is_counted(fields: dict[str, Any], answers: int) -> None:
    facts = read(b"/pooling", **fields)
    assert (facts.answers, facts.max_tokens, facts.stream) == (answers, 0, False)


def test_what_is_classified_is_counted() -> None:
    assert read(b"/classify", input=["a", "b"]).answers == 2
    assert read(b"/classify", messages=[{"role": "user", "content": "a"}]).answers == 1


def test_a_batch_of_conversations_to_embed_has_as_many_answers() -> None:
    said = [{"role": "user", "content": "a"}]
    assert read(b"/v1/embeddings", messages=[said, said, said]).answers == 3


def test_texts_and_images_in_coheres_form_are_counted() -> None:
    assert read(b"/v2/embed", texts=["a", "b", "c"], input_type="search_query").answers == 3
    mixed = [{"content": [{"type": "text", "text": "a"}]}, {"content": []}]
    assert read(b"/v2/embed", inputs=mixed).answers == 2
    image = "data:image/png;base64," + "A" * 400_000
    facts = read(b"/v2/embed", images=[image, image])
    assert (facts.answers, facts.fixed_tokens) == (2, 2 * MEDIA_TOKENS)
    assert facts.text_bytes is not None
    assert facts.text_bytes < 100, "base64 is no text"


@pytest.mark.parametrize("path", [b"/v1/rerank", b"/v2/rerank", b"/rerank"])
def test_documents_are_counted(path: bytes) -> None:
    assert read(path, query="q", documents=["a", {"text": "b"}]).answers == 2


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (b"/v1/rerank", {"query": "q", "documents": None}),
        (b"/v1/score", {"text_1": "q", "text_2": None}),
        (b"/v1/score", {"queries": "q", "documents": None}),
        (b"/score", {"data_1": "q", "data_2": None}),
    ],
)
def test_a_multimodal_reranker_of_vllm_is_given_pictures_in_one_object(
    path: bytes, fields: dict[str, Any]
) -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
    pages = {"content": [picture, picture, {"type": "text", "text": "a"}]}
    facts = read(path, **{name: value or pages for name, value in fields.items()})
    assert (facts.answers, facts.fixed_tokens) == (3, 2 * MEDIA_TOKENS)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (b"/v1/embeddings", {"content": ["a"] * 8}),
        (b"/v1/embeddings", {"messages": [{"role": "user"}], "content": ["a"] * 8}),
        (b"/v1/embeddings", {"messages": [{"role": "user"}], "input": ["a"] * 8}),
        (b"/rerank", {"query": "q", "documents": [{}], "texts": ["a"] * 8}),
    ],
)
def test_inv_2_of_two_lists_the_longer_one_counts(path: bytes, fields: dict[str, Any]) -> None:
    """vLLM reads the first one, llama.cpp the second."""
    assert read(path, **fields).answers == 8


@pytest.mark.parametrize("path", [b"/v1/score", b"/score"])
def test_pairs_are_counted(path: bytes) -> None:
    assert read(path, text_1="q", text_2=["a", "b", "c"]).answers == 3
    assert read(path, queries="q", documents=["a", "b"]).answers == 2


@pytest.mark.parametrize("path", [b"/v1/score", b"/score"])
def test_inv_2_a_search_that_scores_vllms_items_has_as_many_answers(path: bytes) -> None:
    assert read(path, queries="q", items=["a", "b", "c"]).answers == 3


@pytest.mark.parametrize(
    ("path", "query", "documents"),
    [
        (b"/v1/rerank", "query", "documents"),
        (b"/v1/score", "text_1", "text_2"),
        (b"/score", "queries", "items"),
        (b"/score", "data_1", "data_2"),
    ],
)
def test_a_long_question_is_sized_once_for_each_document_as_the_engine_reads_it_with_each(
    path: bytes, query: str, documents: str
) -> None:
    def prompt_tokens(question: str, texts: list[str]) -> int:
        facts = read(path, **{query: question, documents: texts})
        return PromptSizes().tokens("m", facts.text_bytes or 0, facts.fixed_tokens, facts.shape)

    question, text = "who wrote this and when " * 80, "a short document"
    alone = prompt_tokens(question, [text])
    assert prompt_tokens(question, [text] * 50) == pytest.approx(50 * alone, rel=0.1)


def test_two_lists_of_one_length_are_sized_with_each_text_once() -> None:
    sized = read(b"/score", text_1=["question " * 80] * 2, text_2=["text"] * 2)
    assert sized == read(b"/score", data_1=["question " * 80] * 2, data_2=["text"] * 2)
    assert sized.text_bytes is None


def test_an_application_that_asks_llama_cpp_to_rerank_as_it_asked_tei_names_its_documents_texts() -> None:
    assert read(b"/rerank", query="q", texts=["a", "b", "c"]).answers == 3


@pytest.mark.parametrize(
    ("path", "fields", "field"),
    [
        (b"/v1/embeddings", {}, "input"),
        (b"/v1/embeddings", {"input": 5}, "input"),
        (b"/v1/embeddings", {"input": ["a"] * 3000}, "input"),
        (b"/pooling", {}, "input"),
        (b"/pooling", {"messages": []}, "messages"),
        (b"/pooling", {"messages": [[{}]] * 3000}, "messages"),
        (b"/pooling", {"messages": [[{}] * 40_000] * 2}, "messages"),
        (b"/v2/embed", {"input": "a"}, "texts"),
        (b"/v2/embed", {"texts": "a"}, "texts"),
        (b"/v2/embed", {"images": ["a"] * 3000}, "images"),
        (b"/v1/rerank", {"query": "q"}, "documents"),
        (b"/v1/rerank", {"documents": ["a"] * 3000}, "documents"),
        (b"/v1/rerank", {"documents": "a"}, "documents"),
        (b"/v1/rerank", {"documents": {}}, "documents"),
        (b"/rerank", {"texts": ["a"] * 3000}, "texts"),
        (b"/v1/rerank", {"documents": {"content": "a"}}, "documents"),
        (b"/v1/rerank", {"documents": {"content": ["a"] * 3000}}, "documents"),
        (b"/v1/score", {"text_1": "q", "text_2": {"content": ["a"] * 3000}}, "text_2"),
        (b"/v1/score", {"queries": 5, "documents": ["a"]}, "queries"),
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


def test_usage_in_coheres_form_is_what_is_billed() -> None:
    meta = '{"api_version":{"version":"2"},"billed_units":{"input_tokens":12,"image_tokens":null}}'
    answer = f'{{"id":"embd-1","embeddings":{{"float":[[1.0]]}},"texts":["a"],"meta":{meta}}}'
    assert POOLING.read_usage(answer.encode()) == Usage(12, 0)

"""Which answers may be cut short, and how that is written into a body."""

import json

import pytest

from millgate.dialects.clip import clipped, may_clip


@pytest.mark.parametrize(
    "body",
    [
        {"messages": []},
        {"messages": [], "tools": []},
        {"messages": [], "tools": None, "response_format": {"type": "text"}},
        {"input": "x", "text": {"format": {"type": "text"}}},
        {"messages": [], "thinking": {"type": "disabled"}, "output_config": {"effort": "low"}},
    ],
)
def test_plain_text_may_be_shorter(body: object) -> None:
    assert may_clip(json.dumps(body).encode())


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [{"type": "function"}]},
        {"functions": [{"name": "f"}]},
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        {"response_format": {"type": "json_object"}},
        {"text": {"format": {"type": "json_schema"}}},
        {"guided_json": {"type": "object"}},
        {"grammar": "root ::= x"},
        {"ebnf": "root ::= x"},
        {"regex": "[0-9]+"},
        {"guided_regex": "[0-9]+"},
        {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
        {"output_format": {"type": "json_schema", "schema": {}}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    ],
)
def test_tool_calls_and_documents_are_never_cut(body: object) -> None:
    assert not may_clip(json.dumps(body).encode())


def test_what_cannot_be_read_is_left_alone() -> None:
    assert not may_clip(b"{")


@pytest.mark.parametrize(
    ("given", "path", "expected"),
    [
        ({"max_tokens": 900}, b"/v1/chat/completions", {"max_tokens": 64}),
        ({"max_completion_tokens": 900}, b"/v1/chat/completions", {"max_completion_tokens": 64}),
        ({}, b"/v1/completions", {"max_tokens": 64}),
        (
            {"max_tokens": 900, "min_tokens": 100},
            b"/v1/completions",
            {"max_tokens": 64, "min_tokens": 64},
        ),
        (
            {"max_tokens": 900, "min_tokens": 10},
            b"/v1/completions",
            {"max_tokens": 64, "min_tokens": 10},
        ),
        # llama.cpp would take its own name before the bound.
        ({"n_predict": 900}, b"/v1/completions", {"n_predict": 64, "max_tokens": 64}),
        ({"max_tokens": 80, "n_predict": -1}, b"/v1/completions", {"max_tokens": 64, "n_predict": 64}),
        ({"max_tokens": None}, b"/v1/responses", {"max_tokens": None, "max_output_tokens": 64}),
    ],
)
def test_the_bound_goes_where_the_client_put_its_own(given: object, path: bytes, expected: object) -> None:
    assert json.loads(clipped(json.dumps(given).encode(), 64, path=path)) == expected

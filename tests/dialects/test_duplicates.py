"""Fields that are named twice."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st
from msgspec import Raw

from millgate.dialects import dialect_of
from millgate.dialects.contract import BadInputError
from millgate.dialects.duplicates import COMMON, FIELDS


def find(body: bytes, arrays: Sequence[Raw] = ()) -> str | None:
    return COMMON.find(body, arrays).twice or None


@pytest.mark.parametrize("field", FIELDS)
def test_a_guarded_field_twice_is_found(field: str) -> None:
    assert find(f'{{"{field}":1,"x":[],"{field}":1}}'.encode()) == field


@pytest.mark.parametrize(
    ("path", "field", "first", "second"),
    [
        (b"/v1/chat/completions", "n", 1, 128),
        (b"/v1/chat/completions", "n_cmpl", 1, 128),
        (b"/v1/completions", "best_of", 1, 64),
        (b"/v1/completions", "prompt_embeds", ["x"] * 64, "x"),
        (b"/v1/responses", "n_cmpl", 1, 128),
        (b"/v1/completions", "prompt", ["x"] * 64, "x"),
        (b"/v1/embeddings", "input", ["x"] * 64, "x"),
        (b"/v1/embeddings", "content", ["x"] * 64, "x"),
        (b"/v1/rerank", "documents", ["x"] * 64, ["x"]),
        (b"/v1/score", "text_2", ["x"] * 64, "x"),
    ],
)
def test_a_field_twice_that_changes_what_a_request_costs_is_refused(
    path: bytes, field: str, first: object, second: object
) -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}],"documents":["x"]'
    if field == "documents":
        body = b'{"model":"m"'
    twice = body + f',"{field}":{json.dumps(first)},"{field}":{json.dumps(second)}}}'.encode()
    once = body + f',"{field}":{json.dumps(second)}}}'.encode()
    read = dialect_of(path, names_anthropic=False).readers[path]
    read(once)
    with pytest.raises(BadInputError, match=f"{field}: the field appears more than once"):
        read(twice)


@pytest.mark.parametrize(
    "spelled", ["mod\\u0065l", "\\u006dodel", "m\\u006fdel", "\\u006d\\u006f\\u0064\\u0065\\u006c"]
)
def test_an_escaped_name_is_the_same_name(spelled: str) -> None:
    assert find(f'{{"model":1,"{spelled}":2}}'.encode()) == "model"


def test_an_escaped_underscore_is_an_underscore() -> None:
    assert find(b'{"max_tokens":1,"max\\u005ftokens":2}') == "max_tokens"


def test_the_same_name_deeper_down_or_in_text_is_no_duplicate() -> None:
    tool = {"parameters": {"properties": {"model": {"type": "string"}, "stream": {}}}}
    body = {
        "model": "m",
        "tools": [tool, tool],
        "messages": ['say "model": "model"', "model"],
        "stream": True,
    }
    assert find(json.dumps(body).encode()) is None


def test_a_duplicate_whose_values_hold_the_name_too_is_found() -> None:
    assert find(b'{"a":{"model":1},"model":{"model":2},"b":["model"],"model":3}') == "model"


def test_escapes_in_text_cost_nothing_but_a_look() -> None:
    assert find(b'{"model":"\\u00e9","x":"\\u0061bc model"}') is None


KEYS = st.sampled_from(["model", "stream", "max_tokens", "other", "mod\\u0065l", "\\u00e9"])
VALUES = st.sampled_from(['"model"', '{"model":1}', '["stream"]', "1", '"\\"model\\""'])


@given(st.lists(st.tuples(KEYS, VALUES), max_size=8))
def test_the_fast_way_agrees_with_a_full_parse(members: list[tuple[str, str]]) -> None:
    body = "{" + ",".join(f'"{key}":{value}' for key, value in members) + "}"
    keys = [json.loads(f'"{key}"') for key, _ in members]
    doubled = {field for field in FIELDS if keys.count(field) > 1}
    found = find(body.encode())
    assert (found in doubled) if doubled else (found is None)


# Elements of arrays that look like the frame of an object when they are read from within a string, and the like.
ELEMENTS = st.sampled_from(
    [
        '"model"',
        '{"model":1}',
        '["stream"]',
        "1",
        "true",
        '","',
        '":"',
        '"["',
        '"]"',
        '"\\"model\\""',
        '"\\\\"',
    ]
)
BRACKETS = st.sampled_from(['"["', '"]"', '"[1]"', '"[\\"model\\"]"', '["model"]', '"\\u0061"', "1"])


@st.composite
def objects_and_arrays(draw: st.DrawFn) -> tuple[str, list[str], list[str]]:
    """Return an object, its keys, and the arrays that stand in it, which may be named in any order."""
    arrays = draw(
        st.lists(st.lists(ELEMENTS, max_size=4).map(lambda each: f"[{','.join(each)}]"), max_size=3)
    )
    members = draw(st.lists(st.tuples(KEYS, VALUES | BRACKETS), max_size=5))
    members = draw(st.permutations(members + [(f"array{n}", array) for n, array in enumerate(arrays)]))
    text = "{" + ",".join(f'"{key}":{value}' for key, value in members) + "}"
    return text, [json.loads(f'"{key}"') for key, _ in members], draw(st.permutations(arrays))


@given(objects_and_arrays())
def test_what_is_inside_arrays_changes_nothing(found: tuple[str, list[str], list[str]]) -> None:
    text, keys, arrays = found
    doubled = {field for field in FIELDS if keys.count(field) > 1}
    field = find(text.encode(), [Raw(array) for array in arrays])
    assert (field in doubled) if doubled else (field is None)


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[1],"stop":["x"],"model":1,"model":2}',
        b'{"model":1,"a":["model"],"messages":[1],"model":2}',
        b'{"model":1,"messages":[1],"text":"]","model":2}',
        b'{"model":1,"text":"[1]","messages":[1],"model":2}',
    ],
)
def test_a_duplicate_between_or_behind_brackets_is_found(body: bytes) -> None:
    assert find(body, [Raw(b"[1]")]) == "model"
    assert find(body, [Raw(b'["x"]'), Raw(b"[1]")]) == "model"


def test_arrays_are_not_read_again_for_names_in_them() -> None:
    """Tools are full of such names, and a body with tools is the long one: this one could not be read again."""
    messages, tools = b'[{"content":"\\u0041 model"}]', b'[{"model":{"model"}}]'
    body = b'{"messages":%b,"model":"m","tools":%b,"stream":true}' % (messages, tools)
    assert find(body, [Raw(tools), Raw(messages)]) is None

"""Bounds on arrays in a body: kept to the last element, and refused without making what is too much."""

import contextlib
import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from millgate.dialects.arrays import AtMost, check_keys, check_members, check_objects, read_keys
from millgate.dialects.bodies import MOST_BIASES, MOST_MESSAGES, MOST_PROMPTS, MOST_STOPS, MOST_TOOLS
from millgate.dialects.contract import BadInputError
from millgate.dialects.openai import OPENAI

read_chat = OPENAI.readers[b"/v1/chat/completions"]
read_completion = OPENAI.readers[b"/v1/completions"]

MESSAGE: dict[str, Any] = {"role": "user", "content": "hi"}


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


def chat(**fields: Any) -> bytes:
    return json.dumps({"messages": [MESSAGE], **fields}).encode()


def complaint(body: bytes) -> BadInputError:
    with pytest.raises(BadInputError) as caught:
        read_chat(body)
    return caught.value


@pytest.mark.parametrize("most", [1, 2, 100])
def test_so_many_objects_pass_and_one_more_does_not(most: int) -> None:
    element = {"text": "with, commas, in it"}
    check_objects(raw([element] * most), 1, most)
    with pytest.raises(msgspec.ValidationError):
        check_objects(raw([element] * (most + 1)), 1, most)


def test_commas_in_texts_and_in_nested_arrays_are_no_elements() -> None:
    check_objects(raw([{"text": "," * 1000, "numbers": list(range(1000))}]), 1, 10)


def test_an_empty_array_is_one_element_short_where_one_must_be() -> None:
    check_objects(Raw(b"[ ]"), 0, 10)
    with pytest.raises(msgspec.ValidationError):
        check_objects(Raw(b"[ ]"), 1, 10)


@pytest.mark.parametrize("what", [b"{}", b'"text"', b"5", b"null", b"true"])
def test_what_is_no_array_is_refused(what: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        check_objects(Raw(what), 0, 10)


@pytest.mark.parametrize("most", [1, 4, 256])
def test_texts_are_counted_and_one_too_many_is_refused(most: int) -> None:
    texts = AtMost(str, most)
    assert texts.count(raw(["a, b, c"] * most)) == most
    with pytest.raises(msgspec.ValidationError):
        texts.count(raw(["a, b, c"] * (most + 1)))
    with pytest.raises(msgspec.ValidationError):
        texts.count(raw(["a", 5]))


@pytest.mark.parametrize(
    "elements", [["a, b, c"], [[1, 2], [3, 4]], [{"a": 1, "b": 2}], ["a, b, c", {"a": 1, "b": 2}]]
)
def test_elements_of_any_kind_are_counted_however_many_commas_they_have(elements: list[Any]) -> None:
    entries = AtMost(Raw, 4)
    assert entries.count(raw(elements * (4 // len(elements)))) == 4
    with pytest.raises(msgspec.ValidationError):
        entries.count(raw(elements * 5))


def test_members_of_an_object_are_bounded() -> None:
    check_members(raw({str(number): 1 for number in range(10)}), 10)
    with pytest.raises(msgspec.ValidationError):
        check_members(raw({str(number): 1 for number in range(11)}), 10)
    with pytest.raises(msgspec.ValidationError):
        check_members(raw([]), 10)


def test_a_count_that_was_broken_off_leaves_nothing_to_the_next() -> None:
    """The decoder of objects has one counter: it must begin anew each time."""
    for _ in range(3):
        with pytest.raises(msgspec.ValidationError):
            check_objects(raw([MESSAGE] * 20), 1, 10)
        check_objects(raw([MESSAGE] * 10), 1, 10)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages", [MESSAGE] * MOST_MESSAGES),
        ("tools", [{"type": "function"}] * MOST_TOOLS),
        ("stop", ["a"] * MOST_STOPS),
        ("logit_bias", {str(number): 1 for number in range(MOST_BIASES)}),
        ("tools", None),
        ("stop", None),
        ("logit_bias", None),
        ("stop", "one, two"),
        ("tools", []),
    ],
)
def test_a_body_at_its_limit_is_read(field: str, value: Any) -> None:
    assert read_chat(chat(**{field: value})).answers == 1


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("messages", [MESSAGE] * (MOST_MESSAGES + 1), MOST_MESSAGES),
        ("messages", None, MOST_MESSAGES),
        ("messages", {}, MOST_MESSAGES),
        ("tools", [{}] * (MOST_TOOLS + 1), MOST_TOOLS),
        ("tools", "all", MOST_TOOLS),
        ("stop", ["a"] * (MOST_STOPS + 1), MOST_STOPS),
        ("stop", [5], MOST_STOPS),
        ("logit_bias", {str(number): 1 for number in range(MOST_BIASES + 1)}, MOST_BIASES),
        ("logit_bias", [], MOST_BIASES),
    ],
)
def test_a_body_beyond_its_limit_is_refused_naming_field_and_limit(
    field: str, value: Any, limit: int
) -> None:
    error = complaint(chat(**{field: value}))
    assert (error.status, error.field) == (400, field)
    assert error.message.startswith(field)
    assert str(limit) in error.message


def peak_bytes(body: bytes) -> int:
    """Return the most that reading takes the second time: what is made for the first of its kind, and kept, belongs to no body."""
    read = read_completion if b'"prompt"' in body else read_chat
    with contextlib.suppress(BadInputError):
        read(body)
    tracemalloc.start()
    try:
        with contextlib.suppress(BadInputError):
            read(body)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[' + b"1," * 500_000 + b"1]}",
        b'{"messages":[' + b"{}," * 330_000 + b"{}]}",
        b'{"messages":[' + b"1," * 500_000 + b'1],"messages":[5,[]]}',
        b'{"messages":[{}],"tools":[' + b"{}," * 330_000 + b"{}]}",
        b'{"messages":[{}],"stop":[' + b'"ab",' * 200_000 + b'"ab"]}',
        b'{"messages":[{}],"logit_bias":{' + b'"1":1,' * 160_000 + b'"1":1}}',
        b'{"prompt":[' + b'"a",' * 250_000 + b'"a"]}',
    ],
    ids=["numbers", "objects", "twice", "tools", "stops", "biases", "prompts"],
)
def test_a_megabyte_of_tiny_elements_never_becomes_five(body: bytes) -> None:
    assert MOST_PROMPTS < 250_000
    assert peak_bytes(body) < 5 * len(body)


def test_keys_are_shown_as_a_parser_reads_them_and_one_too_many_is_refused() -> None:
    seen: list[str] = []
    read_keys(b'{"a": {"b": [1]}, "\\u0061": 2, "": "c"}', seen.append)
    assert seen == ["a", "a", ""]
    check_keys(b'{"a": {"b": 1}, "a": 2}', 2)
    with pytest.raises(msgspec.ValidationError):
        check_keys(b'{"a": {"b": 1}, "a": 2}', 1)

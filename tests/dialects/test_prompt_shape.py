"""Of what a text is made: counted whole where it is short, from a sample where it is long, escapes as what they stand for."""

import json
import string

import pytest

from millgate.dialects.prompt_shape import shape_of


def test_a_short_body_is_counted_whole() -> None:
    body = b'{"messages":[{"role":"user","content":"Two 22 words?"}]}'
    messages, tools, letters, spaces, digits, signs, beyond = shape_of(body)
    assert (messages, tools, spaces, digits, beyond) == (1, 0, 2, 2, 0)
    assert letters == sum(letter in string.ascii_letters for letter in body.decode())
    assert messages + tools + letters + spaces + digits + signs + beyond == len(body) + 1


def test_a_long_body_is_sampled() -> None:
    text = "One sentence with 12 words, more or less, and a date: 2026-11-23. "
    whole, part = shape_of((text * 3).encode()), shape_of((text * 300).encode())
    assert [count / 100 for count in part[2:6]] == pytest.approx(whole[2:6], rel=0.15)


def test_a_text_that_repeats_itself_is_counted_as_any_other() -> None:
    wrong = 0
    for line_bytes in range(20, 120):
        line = b"2026-11-23 " + b"w" * (line_bytes - 12) + b","
        digits = shape_of(line * (20_000 // line_bytes))[4]
        wrong += digits != pytest.approx(8 * (20_000 // line_bytes), rel=0.25)
    assert wrong <= 2  # lines as long as the sample's step, or twice as long


def test_tools_are_taken_out_of_the_text_they_stand_in() -> None:
    tools = [
        {"type": "function", "function": {"name": "find", "description": "Finds an order by its 12 digits."}}
    ]
    plain = {"messages": [{"role": "user", "content": "Where is it?"}], "tools": []}
    array = json.dumps(tools).encode()
    with_tools = shape_of(json.dumps(plain | {"tools": tools}).encode(), array)
    without = shape_of(json.dumps(plain).encode(), b"[]")
    assert with_tools[1] == len(array)
    assert with_tools[2:] == pytest.approx(without[2:], abs=2)


@pytest.mark.parametrize(
    "text", ["服务器过载时。网关立即告诉客户端何时再来", "Сервер перегружен, попробуйте позже"]
)
def test_escaped_characters_count_as_what_they_stand_for(text: str) -> None:
    plain, escaped = json.dumps(text, ensure_ascii=False), json.dumps(text)
    assert shape_of(escaped.encode())[6] == pytest.approx(len(text.encode()), rel=0.6)
    for kind in (2, 4, 5):
        assert shape_of(escaped.encode())[kind] == pytest.approx(
            shape_of(plain.encode())[kind], abs=len(text)
        )


@pytest.mark.parametrize("body", [b"", b"{}", b"\\" * 5000, b"\\u" * 5000, bytes(range(256)) * 40])
def test_no_count_is_ever_negative(body: bytes) -> None:
    assert min(shape_of(body)) >= 0
    assert min(shape_of(body, body)) >= 0

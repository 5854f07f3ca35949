"""A body with a known frame says what a whole reading of it says."""

import json

import pytest
from hypothesis import given, settings, strategies as some
from msgspec import Raw

from millgate.dialects import openai
from millgate.dialects.contract import BadInputError, RequestFacts
from millgate.dialects.frames import Frames

FACTS = RequestFacts("m", False, 8, 1, None)
FRAME = (b'{"model":"m","messages":', b',"max_tokens":8}')


def _body(messages: bytes) -> bytes:
    return messages.join(FRAME)


def _frames(body: bytes = _body(b'[{"role":"user"}]'), messages: bytes = b'[{"role":"user"}]') -> Frames:
    frames = Frames(1000)
    frames.keep(body, Raw(messages), FACTS)
    return frames


def _said(frames: Frames, body: bytes) -> object:
    found = frames.find(body)
    return None if found is None else found[0]


def test_other_messages_in_a_known_frame_are_the_same_request() -> None:
    assert _said(_frames(), _body(b'[{"role":"user","content":"[other] words"}]')) is FACTS


@pytest.mark.parametrize(
    ("messages", "counted"),
    [
        (b'[{"role":"user","content":"words"}]', 1),
        (b'[{"role":"system","content":"a"} , {"role":"user","content":"b"}]', 2),
        (b'[{"role":"user","content":[{"type":"image_url"}]}]', None),
        (b'[{"role":"user","content":"a [bracket] may open parts"}]', None),
    ],
)
def test_messages_are_counted_where_none_of_them_can_have_parts(messages: bytes, counted: int | None) -> None:
    assert _frames().find(_body(messages)) == (FACTS, counted)


def test_parts_are_looked_for_where_the_frame_names_a_type() -> None:
    body = b'{"messages":[{}],"response_format":{"type":"json_object"}}'
    assert _frames(body, b"[{}]").find(body) == (FACTS, None)


@pytest.mark.parametrize(
    "messages",
    [
        b"[]",
        b"[ ]",
        b"[{]",
        b"[1][2]",
        b'[{}],"model":"another","x":[{}]',
        b'["' + b"x" * 1000 + b'"]',
        b"",
        b"7",
    ],
)
def test_what_is_not_one_filled_array_within_the_bound_is_read_anew(messages: bytes) -> None:
    assert _frames().find(_body(messages)) is None


@pytest.mark.parametrize(
    "body",
    [
        *(b'{"model":"n","messages":[{}],"max_tokens":8}', b'{"model":"m","messages":[{}],"max_tokens":9}'),
        *(b"][", b"[{}]", b"", b"{}", b"[", b'{"model":"m","messages":[', b'],"max_tokens":8}'),
    ],
)
def test_another_frame_is_read_anew(body: bytes) -> None:
    assert Frames(1000).find(body) is None
    assert _frames().find(body) is None


def test_frames_that_take_turns_are_all_known() -> None:
    frames, other = _frames(), RequestFacts("n", True, None, 1, None)
    frames.keep(b'{"stream":true,"messages":[{}]}', Raw(b"[{}]"), other)
    for _ in range(2):
        assert _said(frames, _body(b"[{}]")) is FACTS
        assert _said(frames, b'{"stream":true,"messages":[{"a":1}]}') is other


def test_a_body_with_a_second_array_has_no_frame() -> None:
    body = b'{"messages":[{}],"stop":["x"]}'
    assert _frames(body, b"[{}]").find(body) is None


def test_a_long_frame_is_not_kept() -> None:
    body = b'{"messages":[{}],"user":"' + b"x" * 1024 + b'"}'
    assert _frames(body, b"[{}]").find(body) is None


def test_inv_5_frames_are_forgotten_when_there_are_too_many() -> None:
    frames, bodies = Frames(1000), [b'{"messages":[{}],"seed":%d}' % seed for seed in range(1000)]
    for body in bodies:
        frames.keep(body, Raw(b"[{}]"), FACTS)
    assert frames.find(bodies[0]) is None
    assert _said(frames, bodies[-1]) is FACTS
    assert sum(frames.find(body) is not None for body in bodies) <= 256


PIECES = some.sampled_from(
    [
        *('"model":"m"', '"model":"n"', '"mod\\u0065l":"x"', '"stream":true', '"stream":1', '"max_tokens":3'),
        *('"max_tokens":0', '"n":2', '"stop":["a"]', '"tools":[]', '"seed":1', '"user":"]"', '"user":"["'),
        *(
            '"messages":[{"role":"user","content":"hi"}]',
            '"messages":[{"content":"[a]"},{"type":"image_url"}]',
        ),
        *('"messages":[]', '"messages":["é"]', '"messages":[1,]', '"messages":[[{}]]', '"messages":7'),
        *('"messages":[{"a":"\\ud800"}]', '"messages":[{}] ', ' "messages" : [ {} ]'),
    ]
)


def _outcome(body: bytes, *, anew: bool) -> RequestFacts | str:
    try:
        return (openai._read_anew if anew else openai._read_chat)(body)
    except BadInputError as error:
        return str(error)


@settings(max_examples=300)
@given(
    some.lists(some.lists(PIECES, min_size=1, max_size=3).map(",".join), min_size=1, max_size=6),
    some.binary(max_size=3),
    some.integers(0, 60),
)
def test_whatever_was_read_before_a_body_reads_as_it_does_alone(
    bodies: list[str], noise: bytes, at: int
) -> None:
    for members in bodies:
        whole = f"{{{members}}}".encode()
        for body in (whole, whole[:at] + noise + whole[at:]):
            assert _outcome(body, anew=False) == _outcome(body, anew=True)


def test_words_of_every_script_are_read_and_bytes_that_are_no_text_are_not() -> None:
    for text in ("plain", "ünïcödé", "🚪"):
        body = json.dumps({"model": "m", "messages": [{"content": text}]}, ensure_ascii=False).encode()
        assert openai._read_chat(body).model == "m"
    with pytest.raises(BadInputError, match="UTF-8"):
        openai._read_chat(b'{"model": "m", "messages": [{"content": "\xff"}]}')

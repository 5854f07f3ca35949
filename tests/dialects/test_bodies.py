"""What is told of a body that cannot be read."""

import pytest

from millgate.dialects.bodies import check_utf8, parse
from millgate.dialects.contract import BadInputError
from millgate.dialects.openai_bodies import CHAT

AROUND = (0, 1, 65_532, 65_533, 65_534, 65_535, 65_536, 65_537, 131_071, 131_072)
"""Places within, before and behind the ends of the pieces that a long body is read in."""


def fault(body: bytes) -> str:
    with pytest.raises(BadInputError) as caught:
        check_utf8(body)
    return caught.value.message


@pytest.mark.parametrize("at", AROUND)
@pytest.mark.parametrize("wrong", [b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf0\x9f\x98"], ids=bytes.hex)
@pytest.mark.parametrize("rest", [b"", b"a" * 70_000], ids=["at the end", "within"])
def test_the_place_of_what_is_no_utf_8_is_told_wherever_it_is(at: int, wrong: bytes, rest: bytes) -> None:
    body = b"a" * at + wrong + rest
    with pytest.raises(UnicodeDecodeError) as decoded:
        body.decode()
    assert fault(body) == f"body is not valid UTF-8 (byte {decoded.value.start})"


@pytest.mark.parametrize("at", AROUND)
@pytest.mark.parametrize("letter", ["é", "€", "😀"])
def test_a_letter_may_stand_across_two_pieces(at: int, letter: str) -> None:
    check_utf8(b"a" * at + letter.encode() + b"a" * 70_000)


@pytest.mark.parametrize("rest", ['"}]}', 'and more of it"}],"model":"m"}'], ids=["at the end", "within"])
def test_of_an_emoji_that_a_client_has_cut_in_two_the_place_is_told(rest: str) -> None:
    """JavaScript's `slice` does it. The parser says that the body was truncated, or that an escape has no end."""
    begun = r'{"messages":[{"role":"user","content":"whole \ud83d\ude00, half '
    with pytest.raises(BadInputError) as caught:
        parse(CHAT, (begun + r"\ud83d" + rest).encode())
    assert caught.value.message == (
        f"body is not valid JSON: half of a surrogate pair, as of an emoji that was cut in two (byte {len(begun)})"
    )


def test_a_body_that_ends_too_soon_is_still_called_so() -> None:
    with pytest.raises(BadInputError, match="Input data was truncated"):
        parse(CHAT, rb'{"messages":[{"role":"user","content":"\ud83d\ude00 \\ud83d')

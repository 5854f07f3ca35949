"""An answer head that repeats on its connection is read the short way, and nobody can tell."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from millgate.http1.client.answer import ProtocolViolationError
from millgate.http1.client.reader import AnswerReader

HEAD = b"HTTP/1.1 200 OK\r\nDate: now\r\nContent-Length: %b\r\nContent-Type: application/json\r\nX: 1\r\n\r\n"
FIRST = HEAD % b"2" + b"{}"


def read(reader: AnswerReader, *pieces: bytes, forgetful: bool, head_only: bool = False) -> list[Any]:
    """Feed one answer; return all that can be seen of it."""
    if forgetful:
        reader._cut = None
    try:
        for piece in pieces:
            reader.feed(piece, head_only=head_only)
    except ProtocolViolationError as violation:
        return [str(violation)]
    seen = [
        reader.head,
        b"".join(reader.parts),
        reader.whole,
        reader.surplus,
        reader.until_close,
        reader.touched,
    ]
    return [*seen, reader.keep_alive if reader.whole else None]


def assert_nobody_can_tell(*pieces: bytes, head_only: bool = False) -> bool:
    """Compare a connection that remembers its first answer with one that does not; return whether it was short."""
    seen, short = [], False
    for forgetful in (False, True):
        reader = AnswerReader(4096, 8)
        assert read(reader, FIRST, forgetful=forgetful)[1] == b"{}"
        reader.clear()
        seen.append(read(reader, *pieces, forgetful=forgetful, head_only=head_only))
        short = short or reader._repeated
    plain = [[_bare(each) for each in one] for one in seen]
    assert plain[0] == plain[1]
    return short


def _bare(seen: Any) -> Any:
    """Leave out the notes, which only a repeated head has."""
    return seen[:3] if isinstance(seen, tuple) else seen


def test_another_length_is_read_the_short_way() -> None:
    assert assert_nobody_can_tell(FIRST)
    assert assert_nobody_can_tell(HEAD % b"10" + b"0123456789")
    assert assert_nobody_can_tell(HEAD % b"10", b"01234", b"56789")


def test_what_comes_after_the_body_is_surplus() -> None:
    assert assert_nobody_can_tell(FIRST + b"x")


def test_an_answer_without_a_body_by_its_request_is_read_the_long_way() -> None:
    assert not assert_nobody_can_tell(HEAD % b"2", head_only=True)


@pytest.mark.parametrize(
    "digits", [b"+2", b" 2", b"0x2", b"1_0", b"2,2", b"", b"0", b"2\r\nContent-Length: 2", b"2\n"]
)
def test_no_other_spelling_of_a_length_gets_by(digits: bytes) -> None:
    assert_nobody_can_tell(HEAD % digits + b"{}")


@given(position=st.integers(0, len(FIRST) - 1), byte=st.integers(0, 255))
def test_one_byte_of_difference_anywhere_is_seen(position: int, byte: int) -> None:
    assert_nobody_can_tell(FIRST[:position] + bytes([byte]) + FIRST[position + 1 :])


@given(cut=st.integers(1, len(FIRST) - 1))
def test_an_answer_may_come_in_pieces(cut: int) -> None:
    assert_nobody_can_tell(FIRST[:cut], FIRST[cut:])


@pytest.mark.parametrize(
    "first",
    [
        b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_what_may_not_be_repeated_is_not_remembered(first: bytes) -> None:
    reader = AnswerReader(4096, 8)
    reader.feed(FIRST, head_only=False)
    reader.clear()
    reader.feed(first, head_only=False)
    assert reader._cut is None


def test_repeats_come_with_the_same_notes() -> None:
    reader = AnswerReader(4096, 8)
    notes = []
    for _again in range(3):
        reader.feed(FIRST, head_only=False)
        assert reader.head is not None
        notes.append(reader.head.notes)
        reader.clear()
    assert notes[1] is not None
    assert notes[1] is notes[2]


@given(
    digits=st.sampled_from([b"2", b"02", b"10", b"1", b"0", b"+2", b""]),
    body=st.binary(max_size=12),
    position=st.integers(0, len(FIRST) + 12),
    changed=st.none() | st.binary(max_size=1),
)
def test_an_answer_taken_at_once_is_the_one_that_feeding_gives(
    digits: bytes, body: bytes, position: int, changed: bytes | None
) -> None:
    data = HEAD % digits + body
    if changed is not None:
        data = data[:position] + changed + data[position + 1 :]
    reader = AnswerReader(4096, 8)
    reader.feed(FIRST, head_only=False)
    reader.clear()
    taken = reader.repeated(data)
    assert not reader.touched
    seen = read(reader, data, forgetful=True)
    if taken is not None:
        head, content = taken
        assert [_bare(head), content, True, False] == [_bare(seen[0]), *seen[1:4]]
        assert seen[-1] is True
    elif seen[2:4] == [True, False] and seen[-1]:
        assert data != HEAD % b"%d" % len(body) + body or not body


def test_a_part_of_an_answer_is_not_taken_at_once() -> None:
    reader = AnswerReader(4096, 8)
    reader.feed(FIRST, head_only=False)
    reader.clear()
    assert reader.repeated(FIRST) is not None
    assert reader.repeated(FIRST[:-1]) is None
    assert reader.repeated(FIRST + b"x") is None
    reader.feed(FIRST[:20], head_only=False)
    assert reader.repeated(FIRST) is None

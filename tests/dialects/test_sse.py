"""Splitting server-sent events."""

import pytest
from hypothesis import given, strategies as st

from millgate.dialects.sse import MOST_EVENTS, EventFloodError, Splitter, payload

LINE_ENDS = [b"\n", b"\r\n", b"\r"]
STREAMS = st.lists(
    st.sampled_from([b"data: a", b"event: x", b": comment", b"", b"\n", b"\r", b"\r\n", b"\n\n", b"data:b"]),
    max_size=20,
).map(b"".join)


def cut(whole: bytes, sizes: list[int]) -> list[bytes]:
    parts = []
    for size in sizes:
        parts.append(whole[:size])
        whole = whole[size:]
    return [*parts, whole]


@given(STREAMS, st.lists(st.integers(0, 6), max_size=30))
def test_pieces_and_rest_are_the_bytes_that_went_in(whole: bytes, sizes: list[int]) -> None:
    splitter = Splitter()
    pieces = [piece for part in cut(whole, sizes) for piece in splitter.feed(part)]
    assert b"".join(pieces) + splitter.rest == whole


@pytest.mark.parametrize("line_end", LINE_ENDS)
@given(sizes=st.lists(st.integers(0, 9), max_size=30))
def test_the_same_events_come_out_however_the_bytes_are_cut(line_end: bytes, sizes: list[int]) -> None:
    whole = b"data: one\n\nevent: x\ndata: two\n\n: c\n\ndata: three\n\n".replace(b"\n", line_end)
    splitter = Splitter()
    pieces = [piece for part in cut(whole, sizes) for piece in splitter.feed(part)]
    assert [payload(piece) for piece in pieces if payload(piece)] == [b"one", b"two", b"three"]
    assert bytes(splitter.rest) in {b"", b"\n"}  # the second half of a CRLF that was cut in two


@pytest.mark.parametrize("line_end", LINE_ENDS)
def test_a_single_line_end_ends_no_event(line_end: bytes) -> None:
    assert Splitter().feed(b"data: a" + line_end + b"data: b" + line_end) == []


def test_data_lines_are_joined_and_other_lines_left_out() -> None:
    assert payload(b"event: x\r\ndata: a\r\nid: 1\r\ndata:b\r\n\r\n") == b"a\nb"


def test_comments_and_blanks_have_no_payload() -> None:
    assert payload(b": ping\n\n") == payload(b"\n") == payload(b"event: ping\n\n") == b""


@pytest.mark.parametrize("line_end", LINE_ENDS)
def test_an_image_of_megabytes_is_left_out_of_what_is_read_and_stays_in_what_is_passed_on(
    line_end: bytes,
) -> None:
    image = b"data: " + b'{"a":"' + b"A" * 3_000_000 + b'","b":"\\"c"}' + 2 * line_end
    splitter = Splitter()
    pieces = [
        piece for at in range(0, len(image), 65_536) for piece in splitter.feed(image[at : at + 65_536])
    ]
    assert pieces == [image]
    assert payload(image) == b'{"a":"' + b"A" * 64 + b'","b":"\\"c"}'


def test_of_a_long_event_without_an_image_its_beginning_is_read() -> None:
    for entry in (b'"a",', b"0,"):
        whole = b"data: [" + entry * 1_000_000 + b"0]\n\n"
        assert 0 < len(payload(whole)) < 1 << 20
        assert whole.startswith(b"data: " + payload(whole))


def test_an_event_beyond_the_bound_is_an_error() -> None:
    splitter = Splitter(most_bytes=100)
    assert splitter.feed(b"x" * 100) == []
    with pytest.raises(EventFloodError):
        splitter.feed(b"x")


@pytest.mark.parametrize("unit", [b":\n\n", b"a\r\r", b"data:0\r\n\r\n"])
def test_a_flood_of_events_in_one_read_is_an_error_and_a_burst_is_not(unit: bytes) -> None:
    assert len(Splitter().feed(unit * MOST_EVENTS)) == MOST_EVENTS
    with pytest.raises(EventFloodError):
        Splitter().feed(unit * (MOST_EVENTS + 1))


@pytest.mark.parametrize("line_end", LINE_ENDS)
def test_line_ends_in_a_row_are_one_piece(line_end: bytes) -> None:
    blank = b"data: a" + line_end * 10_000
    assert Splitter().feed(blank) == [blank]


def test_many_small_feeds_of_one_long_event_take_linear_time() -> None:
    searched: list[int] = []
    splitter = Splitter()
    for _ in range(1000):
        splitter.feed(b"x" * 10)
        searched.append(len(splitter.rest) - splitter._searched)
    assert max(searched) <= 3

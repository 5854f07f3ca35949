"""A chunked body is the same body in any reads: what goes past the parser is what the parser would have said."""

from hypothesis import given, strategies as st

from millgate.http1.client.answer import ProtocolViolationError
from millgate.http1.client.reader import AnswerReader
from millgate.http1.wire.chunk_lines import as_chunk, of_chunk

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"

data = st.sampled_from([b"data: 1\n\n", b"\r\n", b"3\r\nabc\r\n", b"x" * 17, b"0\r\n\r\n", b"", b"a\r\n"])


def written(size: bytes, data: bytes, end: bytes) -> bytes:
    return size + b"\r\n" + data + end


def honest(data: bytes) -> st.SearchStrategy[bytes]:
    """Chunks as engines write them, and in other ways that are allowed."""
    size = b"%x" % len(data)
    return st.sampled_from([size, size, size, size.upper(), b"0" + size, size + b";a=b"]).map(
        lambda size: written(size, data, b"\r\n")
    )


def broken(data: bytes) -> st.SearchStrategy[bytes]:
    """Chunks that say another length, or say it in another way, or end otherwise."""
    size = len(data)
    sizes = [b"%x" % (size + 1), b"%x" % max(0, size - 1), b"0x%x" % size, b"+%x" % size, b"-1", b"g", b""]
    wrong = st.sampled_from(sizes).map(lambda each: written(each, data, b"\r\n"))
    return wrong | st.sampled_from(
        [written(b"%x" % size, data, end) for end in (b"\n", b"", b"\r\n\r\n", b"xx")]
    )


reads = st.lists(
    st.lists(data.flatmap(lambda each: honest(each) if each else st.just(b"")), min_size=1, max_size=2).map(
        b"".join
    ),
    max_size=5,
)


def outcome(pieces: list[bytes]) -> tuple[bytes, bool] | None:
    """Return the body and whether it is whole; None for a refusal."""
    reader = AnswerReader(4096, 3)
    body = b""
    try:
        for piece in pieces:
            if piece and not reader.whole:
                reader.feed(piece, head_only=False)
                body += b"".join(reader.parts)
                reader.parts.clear()
    except ProtocolViolationError:
        return None
    return body, reader.whole


def bytewise(answer: bytes) -> list[bytes]:
    return [HEAD, *(answer[n : n + 1] for n in range(len(answer)))]


@given(reads, st.booleans(), st.booleans())
def test_one_chunk_a_read_is_what_it_is_byte_by_byte(
    pieces: list[bytes], ends: bool, with_head: bool
) -> None:
    pieces = [*pieces, LAST] if ends else pieces
    expected = outcome(bytewise(b"".join(pieces)))
    first = pieces[:1] if with_head else []
    assert outcome([HEAD + b"".join(first), *pieces[len(first) :]]) == expected
    assert expected is not None
    assert expected[1] is ends or LAST in pieces[:-1]


@given(st.integers(1, 5_000) | st.integers(65_000, 66_000) | st.integers(0xFFFF0, 0xFFFFF))
def test_what_is_framed_is_unframed(size_bytes: int) -> None:
    data = b"x" * size_bytes
    assert as_chunk(data) == b"%x\r\n%b\r\n" % (size_bytes, data)
    assert of_chunk(as_chunk(data)) == data


@given(reads, data.flatmap(broken), reads)
def test_a_broken_chunk_is_refused_wherever_it_stands(
    before: list[bytes], wrong: bytes, after: list[bytes]
) -> None:
    pieces = [*before, wrong, *after, LAST]
    assert outcome([HEAD, *pieces]) == outcome(bytewise(b"".join(pieces)))


def test_a_length_is_not_believed_that_only_python_could_read() -> None:
    for size in (b"0x5", b"+5", b" 5", b"5_", b"0_5", b"5 "):
        assert outcome([HEAD, written(size, b"hello", b"\r\n")]) == outcome(
            bytewise(written(size, b"hello", b"\r\n"))
        )

"""Header lines: what is remembered gives the same result as what is not, within a bound and without secrets."""

import pytest
from hypothesis import given, strategies as st

from millgate.http1.wire.fields import (
    FRAMING,
    HeaderReader,
    HeaderWriter,
    Pair,
    header_lines,
    stays_open,
)

names = st.from_regex(rb"[a-z][a-z0-9-]{0,20}", fullmatch=True).filter(lambda name: name not in FRAMING)
values = st.binary(max_size=300).filter(lambda value: not set(value) & set(b"\r\n\0")).map(bytes.strip)
pairs = st.lists(st.tuples(names, values), max_size=12)


@given(st.lists(pairs, max_size=4))
def test_reading_gives_back_what_was_written_however_often(several: list[list[Pair]]) -> None:
    reader, writer = HeaderReader(), HeaderWriter()
    for headers in several * 2:
        written = writer.write(headers)
        assert written == header_lines(headers)
        assert reader.read(written.split(b"\r\n")[:-1]) == headers


def test_names_are_lower_cased_and_blanks_around_values_dropped() -> None:
    reader = HeaderReader()
    for _again in range(2):
        assert reader.read([b"X-Name: \t value\t ", b"X-EMPTY:"]) == [
            (b"x-name", b"value"),
            (b"x-empty", b""),
        ]


def test_the_memory_is_bounded() -> None:
    reader, writer = HeaderReader(), HeaderWriter()
    for number in range(20_000):
        reader.read([b"x-id: %d" % number, b"x-long: " + b"x" * 300])
        writer.write([(b"x-id", b"%d" % number), (b"x-long", b"x" * 300)])
        assert len(reader) <= 4096
        assert len(writer) <= 4096
    assert len(reader) > 0
    assert len(writer) > 0


@pytest.mark.parametrize(
    "name", [b"authorization", b"x-api-key", b"api-key", b"cookie", b"set-cookie", b"x-auth-token"]
)
def test_credentials_are_never_remembered(name: bytes) -> None:
    reader, writer = HeaderReader(), HeaderWriter()
    reader.read([name + b": secret"])
    writer.write([(name, b"secret")])
    assert (len(reader), len(writer)) == (0, 0)


@pytest.mark.parametrize(
    "pair", [(b"a", b"b\r\nc: d"), (b"a\n", b"b"), (b"a", b"\0"), (b"connection", b"close")]
)
def test_a_pair_that_would_break_the_framing_is_refused_every_time(pair: Pair) -> None:
    writer = HeaderWriter()
    for _again in range(2):
        with pytest.raises(ValueError, match=r"cannot be sent|by the wire alone"):
            writer.write([(b"x", b"y"), pair])
        with pytest.raises(ValueError, match=r"cannot be sent|by the wire alone"):
            header_lines([(b"x", b"y"), pair])


@pytest.mark.parametrize(
    ("said", "open_"),
    [
        ([], True),
        ([b"keep-alive"], True),
        ([b"close"], False),
        ([b"TE, Close"], False),
        ([b"te", b"close"], False),
    ],
)
def test_close_is_found_in_any_connection_header(said: list[bytes], open_: bool) -> None:
    for name in (b"connection", b"proxy-connection"):
        fields = [(b"a", b"b"), *((name, value) for value in said)]
        assert stays_open(fields, dict(reversed(fields))) is open_

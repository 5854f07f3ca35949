"""What is written to Envoy by parts, and read off bytes, is what the library writes and reads."""

import pytest
from envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValueOption
from envoy.data.accesslog.v3.accesslog_pb2 import HTTPAccessLogEntry
from envoy.service.ext_proc.v3.external_processor_pb2 import HttpHeaders, ProcessingResponse
from hypothesis import given, strategies as st

from millgate.servers.extproc.messages import (
    CHUNK_BYTES,
    Forward,
    forwarded_body,
    forwarded_head,
    forwarded_whole,
    read_fields,
    read_head,
)
from millgate.servers.extproc.protobuf import extent, way, wrapped
from millgate.servers.extproc.settings import DESTINATION, METADATA

NAMES = st.text("abcXYZ-:", min_size=1, max_size=200)
VALUES = st.binary(max_size=300) | st.binary(min_size=16_380, max_size=16_390)
PAIRS = st.lists(st.tuples(NAMES, VALUES), max_size=8)
FORWARDS = st.builds(
    Forward,
    destination=st.sampled_from(["10.0.0.1:8000", "[::1]:80"]),
    attempt=st.text("0123456789abcdef-", min_size=1, max_size=200),
    request_id=st.binary(min_size=1, max_size=200),
    fields=st.lists(st.tuples(st.sampled_from([b"authorization", b":path"]), VALUES), max_size=2),
    without=st.lists(st.sampled_from(["x-api-key", "cookie"]), max_size=2),
    key_refused=st.text(max_size=300).map(str.encode),
)


@given(PAIRS, st.booleans())
def test_a_head_is_read_as_the_library_reads_it(pairs: list[tuple[str, bytes]], as_text: bool) -> None:
    headers = HttpHeaders()
    for name, value in pairs:
        header = headers.headers.headers.add()
        header.key = name
        if as_text:
            header.value = value.decode("latin-1")
        else:
            header.raw_value = value

    assert read_fields(headers) == [
        (header.key.lower().encode(), header.raw_value or header.value.encode())
        for header in headers.headers.headers
    ]


def test_a_field_that_is_not_known_is_passed_over() -> None:
    known = HeaderMap(headers=[{"key": "Host", "raw_value": b"gate"}]).SerializeToString()
    begin, end = extent(known, 1)
    more = known[begin:end] + b"\x78\x01\xa2\x06\x01x"
    foreign = wrapped(more, way(HeaderMap, "headers")) + b"\x10\x05"

    assert read_fields(HttpHeaders(headers=HeaderMap.FromString(foreign))) == [(b"host", b"gate")]


def test_of_a_name_that_comes_twice_the_first_is_found() -> None:
    head = read_head([(b":method", b"POST"), (b":path", b"/v1/x?y"), (b"a", b"1"), (b"a", b"2")], "peer")

    assert head is not None
    assert (head.method, head.target, head.path) == (b"POST", b"/v1/x?y", b"/v1/x")
    assert head.headers == [(b"a", b"1"), (b"a", b"2")]
    assert head.named == {b"a": b"1"}


def steered(forward: Forward, *, whole: bool) -> ProcessingResponse:
    """Return what the library would write, field by field."""
    response = ProcessingResponse()
    common = (response.request_body if whole else response.request_headers).response
    common.clear_route_cache = True
    for name, value in [
        (DESTINATION.encode(), forward.destination.encode()),
        *forward.fields,
        (b"x-request-id", forward.request_id),
    ]:
        option = common.header_mutation.set_headers.add()
        option.append_action = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
        option.header.key, option.header.raw_value = name.decode(), value
    common.header_mutation.remove_headers.extend(forward.without)
    fields = response.dynamic_metadata.fields
    fields["envoy.lb"].struct_value.fields[DESTINATION].string_value = forward.destination
    fields[METADATA].struct_value.fields["attempt"].string_value = forward.attempt
    if forward.key_refused:
        told = forward.key_refused.decode()
        fields[METADATA].struct_value.fields["key_refused"].string_value = told
    return response


@given(FORWARDS, st.none() | st.binary(max_size=300))
def test_an_admitted_request_is_steered_as_the_library_would_write_it(
    forward: Forward, body: bytes | None
) -> None:
    whole = steered(forward, whole=True)
    if body is not None:
        whole.request_body.response.body_mutation.body = body

    assert ProcessingResponse.FromString(forwarded_head(forward)) == steered(forward, whole=False)
    assert ProcessingResponse.FromString(forwarded_whole(forward, body)) == whole


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_384, CHUNK_BYTES, CHUNK_BYTES + 1])
@pytest.mark.parametrize("ends", [True, False])
def test_a_body_goes_on_in_chunks_of_which_the_last_ends_it(size: int, *, ends: bool) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    told = [ProcessingResponse.FromString(each) for each in forwarded_body(body[:size], ends=ends)]
    chunks = [each.request_body.response.body_mutation.streamed_response for each in told]

    assert b"".join(chunk.body for chunk in chunks) == body[:size]
    assert [chunk.end_of_stream for chunk in chunks] == [False] * (len(chunks) - 1) + [ends]
    assert len(chunks) == max(1, -(-size // CHUNK_BYTES))


def test_a_tag_of_two_bytes_is_refused_when_the_way_is_named() -> None:
    with pytest.raises(ValueError, match="two bytes"):
        way(HTTPAccessLogEntry, "common_properties", "access_log_type")

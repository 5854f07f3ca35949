"""Lines that are read plainly mean what the rules of the protocol say, whatever a client spells."""

import json

from hypothesis import example, given, strategies as st

from millgate.dialects.line import read_by_the_rules, read_request
from millgate.dialects.line_requests import LineChunk, LineRequest, Manifest, Verb, read_plainly

_NUMBERS = st.sampled_from(
    [
        "0",
        "1",
        "-1",
        "1.0",
        "1e0",
        "-0",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551616",
        "true",
    ]
)
_TEXTS = st.sampled_from(
    [
        '""',
        '"J"',
        '"share"',
        '"ping"',
        '"pi\\u006eg"',
        '"\\ud800"',
        '"\\ud83d\\ude00"',
        "null",
        '"é"',
        "7",
        "[]",
    ]
)
_VALUES = st.one_of(_NUMBERS, _TEXTS, st.sampled_from(["{}", '{"payload_id":"p"}', "NaN"]))
_KEYS = st.sampled_from(
    ["v", "verb", "Verb", "job", "seq", "ttl_ms", "token", "status", "receipts", "x", "\u017feq"]
)


def _object(pairs: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f'"{key}":{value}' for key, value in pairs) + "}"


_MANIFESTS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "payload_id",
                "total_bytes",
                "chunk_bytes",
                "chunks",
                "sha256",
                "want_result",
                "session",
                "Chunks",
            ]
        ),
        st.one_of(_NUMBERS, _TEXTS),
    ),
    max_size=4,
).map(_object)
_CHUNKS = st.lists(
    st.tuples(
        st.sampled_from(["payload_id", "index", "offset", "bytes_b64", "y"]), st.one_of(_NUMBERS, _TEXTS)
    ),
    max_size=3,
).map(_object)
_GOOD = [("v", "0"), ("verb", '"share"'), ("job", '"J"'), ("seq", "1")]
_LINES = st.builds(
    lambda good, more, manifest, chunk: _object(
        [
            *good,
            *more,
            *([("payload_manifest", manifest)] if manifest else []),
            *([("payload_chunk", chunk)] if chunk else []),
        ]
    ),
    st.lists(st.sampled_from(_GOOD), max_size=6),
    st.lists(st.tuples(_KEYS, _VALUES), max_size=3),
    st.none() | _MANIFESTS,
    st.none() | _CHUNKS,
)


@given(line=_LINES)
@example(line=_object([*_GOOD, ("payload_manifest", '{"total_bytes":1.0}')]))
@example(line=_object([*_GOOD, ("seq", "null"), ("payload_chunk", "{}")]))
@example(line=_object([*_GOOD, ("payload_chunk", "{}"), ("payload_chunk", '{"index":3}')]))
@example(line=_object([("verb", '"ping"'), ("job", '"\\u0000"'), ("seq", "1")]) + " \r")
def test_a_line_is_read_as_the_rules_read_it_however_it_is_spelled(line: str) -> None:
    assert read_request(line.encode()) == read_by_the_rules(line.encode())


@given(line=st.binary(max_size=60))
def test_noise_is_read_as_the_rules_read_it(line: bytes) -> None:
    assert read_request(line) == read_by_the_rules(line)


def test_the_lines_of_known_clients_are_read_plainly() -> None:
    manifest = {
        "payload_id": "p",
        "content_type": "a/b",
        "total_bytes": 4,
        "chunk_bytes": 4,
        "chunks": 1,
        "sha256": "ab",
    }
    chunk = {"payload_id": "p", "index": 0, "offset": 0, "sha256": "ab", "bytes_b64": "YWJj"}
    frame = {"v": 0, "verb": "share", "job": "J", "seq": 1, "ttl_ms": 5000}
    for more in ({"payload_manifest": manifest}, {"payload_chunk": chunk}, {"verb": "ping"}):
        line = json.dumps({**frame, **more}).encode()
        assert read_plainly(line) is not None
        read = read_request(line)
        assert isinstance(read, LineRequest)
        assert read == read_by_the_rules(line)
    assert read == LineRequest(Verb.PING, "J", 1, 5000)
    assert read_request(json.dumps({**frame, "payload_manifest": manifest}).encode()) == LineRequest(
        Verb.SHARE, "J", 1, 5000, Manifest("p", "a/b", "", "", 4, 4, 1, "ab")
    )
    assert read_request(json.dumps({**frame, "payload_chunk": chunk}).encode()) == LineRequest(
        Verb.SHARE, "J", 1, 5000, None, LineChunk("p", 0, 0, "ab", "YWJj")
    )

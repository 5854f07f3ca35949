"""Envoy's messages and our answers to them, as protobuf (envoy.service.ext_proc.v3).

An attribute of a protobuf message takes as long in Python as a whole header of a request should. So heads are read off the bytes of
their map, and of an answer the part that is the same for many requests is kept as bytes.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValue, HeaderValueOption
from envoy.service.ext_proc.v3.external_processor_pb2 import (
    BodyResponse,
    CommonResponse,
    HttpHeaders,
    ProcessingRequest,
    ProcessingResponse,
    StreamedBodyResponse,
)
from google.protobuf.struct_pb2 import Struct

from millgate.http1.server.contract import Headers, RequestHead
from millgate.http1.wire.fields import Lines
from millgate.servers.extproc.protobuf import Way, extent, way, wrapped, written
from millgate.servers.extproc.settings import DESTINATION, KEY_REFUSED, METADATA

CHUNK_BYTES: Final = 62_000
"""Most of a body in one message: llm-d-router cuts here, below Envoy's limit of 64 KB for one chunk."""
NO_BODY, STREAMED, BUFFERED, FULL_DUPLEX = 0, 1, 2, 4
"""Body modes (envoy.extensions.filters.http.ext_proc.v3.ProcessingMode.BodySendMode)."""
BY_HEAD: Final = (NO_BODY, STREAMED)
"""Modes in which the head must be answered before anything of a body comes, if any does."""
_OVERWRITE: Final = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
_ATTEMPT: Final = "attempt"

_MOST_ALIKE: Final = 256

# How an answer is written by parts: where a header is set, what that is in its map, and what names an attempt to Envoy.
_HEAD: Final = way(ProcessingResponse, "request_headers", "response", "header_mutation", "set_headers")
_BODY: Final = way(ProcessingResponse, "request_body", "response", "header_mutation", "set_headers")
_CHUNK: Final = way(
    ProcessingResponse, "request_body", "response", "body_mutation", "streamed_response", "body"
)
_ENDS: Final = written(StreamedBodyResponse(end_of_stream=True))
_HEADER: Final = way(HeaderValueOption, "header")
_VALUE: Final = way(HeaderValue, "raw_value")
_REQUEST_ID: Final = wrapped(b"x-request-id", way(HeaderValue, "key"))
_OVERWRITES: Final = written(HeaderValueOption(append_action=_OVERWRITE))
_METADATA: Final = way(ProcessingResponse, "dynamic_metadata", "fields")
_OF_OURS: Final = way(Struct, "fields", "value", "struct_value", "fields")[1:]
_NAME: Final = way(Struct, "fields", "value", "string_value")[1:]
_OURS: Final = wrapped(METADATA.encode(), way(Struct, "fields", "key")[1:])
_NAMED: Final = wrapped(_ATTEMPT.encode(), way(Struct, "fields", "key")[1:])
_REFUSED: Final = wrapped(KEY_REFUSED.encode(), way(Struct, "fields", "key")[1:])
_ENTRY: Final = way(HeaderMap, "headers")[0][0]
_KEY: Final = way(HeaderValue, "key")[0][0]
_TEXT: Final = way(HeaderValue, "value")[0][0]
_RAW: Final = _VALUE[0][0]


class Modes(NamedTuple):
    """How Envoy sends bodies: of the request, whether before the head is answered, and of the answer."""

    request: int = FULL_DUPLEX
    early: bool = True
    answer: int | None = None
    """None where Envoy does not say: versions before 1.34."""


class Forward(NamedTuple):
    """An admitted request as Envoy is to send it: where to, under which attempt, and what of its head is changed."""

    destination: str
    attempt: str
    request_id: bytes
    fields: Headers
    """Set on the request, over what the client sent."""
    without: Sequence[str]
    """Names of headers that stay here."""
    key_refused: bytes = b""
    """The body that the client gets where the engine refuses our own key; empty where it gets the client's."""


def modes_of(message: ProcessingRequest) -> Modes:
    """Read the modes, which come with the first message."""
    if not message.HasField("protocol_config"):
        return Modes()
    config = message.protocol_config
    early = config.send_body_without_waiting_for_header_response
    return Modes(
        config.request_body_mode, config.request_body_mode == FULL_DUPLEX or early, config.response_body_mode
    )


def read_fields(headers: HttpHeaders) -> list[tuple[bytes, bytes]]:
    """Return the pairs of a head, names in lower case; pseudo-headers are among them."""
    data: bytes = headers.headers.SerializeToString()
    fields: list[tuple[bytes, bytes]] = []
    at = 0
    while at < len(data) and data[at] == _ENTRY:
        begin, at = extent(data, at + 1)
        fields.append(_pair(data, begin, at))
    return fields


def _pair(data: bytes, at: int, end: int) -> tuple[bytes, bytes]:
    """Return the name and the value of one header; what is not known of it stands last."""
    name, value = b"", b""
    while at < end:
        tag = data[at]
        if tag not in (_KEY, _TEXT, _RAW):
            break
        begin, at = extent(data, at + 1)
        if tag == _KEY:
            name = data[begin:at].lower()
        elif at > begin:  # of a value as text and as bytes one is empty
            value = data[begin:at]
    return name, value


def read_head(fields: list[tuple[bytes, bytes]], peer: str) -> RequestHead | None:
    """Return a request's head, of which pseudo-headers come first; None for one without a method or a path."""
    method, target, first = b"", b"", 0
    for name, value in fields:
        if not name.startswith(b":"):
            break
        first += 1
        if name == b":method":
            method = value
        elif name == b":path":
            target = value
    if not method or not target.startswith(b"/"):
        return None
    headers = fields[first:]
    named: dict[bytes, bytes] = {}
    for name, value in headers:
        named.setdefault(name, value)
    length = named.get(b"content-length", b"")
    size = int(length) if length.isdigit() and len(length) < 19 else None
    return RequestHead(method, target, target.partition(b"?")[0], headers, size, peer, named)


def read_status(fields: Iterable[tuple[bytes, bytes]]) -> int:
    """Return the status of an answer's head: it is the pseudo-header `:status`; 0 without one."""
    status = next((value for name, value in fields if name == b":status"), b"")
    return int(status) if status.isdigit() and len(status) == 3 else 0


def pairs_of(headers: Headers | Lines) -> Iterator[tuple[bytes, bytes]]:
    """Yield the pairs, of lines that were written before too."""
    if not isinstance(headers, bytes):
        yield from headers
        return
    for line in headers.split(b"\r\n"):
        if line:
            name, _, value = line.partition(b":")
            yield name, value.strip()


def refusal(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bytes:
    """Answer the client ourselves, instead of an engine."""
    response = ProcessingResponse()
    immediate = response.immediate_response
    immediate.status.code = status  # 529 is no name of Envoy's, and passes as a number
    immediate.body = body
    immediate.details = METADATA
    _set(immediate.headers.set_headers, headers)
    return written(response)


def forwarded_head(forward: Forward) -> bytes:
    """Let the head go, to the engine that was chosen."""
    return _steered(forward, _HEAD)


def forwarded_whole(forward: Forward, body: bytes | None) -> bytes:
    """Let the head and the body that Envoy holds go; another body where it was changed."""
    steered = _steered(forward, _BODY)
    if body is None:
        return steered
    changed = ProcessingResponse()
    changed.request_body.response.body_mutation.body = body
    return steered + written(changed)


def forwarded_body(body: bytes, *, ends: bool) -> Iterator[bytes]:
    """Send a body on in chunks; the last one ends the request unless trailers do."""
    for begin in range(0, max(1, len(body)), CHUNK_BYTES):
        chunk = wrapped(body[begin : begin + CHUNK_BYTES], _CHUNK[-1:])
        is_last = ends and begin + CHUNK_BYTES >= len(body)
        yield wrapped(chunk + _ENDS if is_last else chunk, _CHUNK[:-1])


UNCHANGED_HEAD: Final = written(ProcessingResponse(request_headers={}))
"""Let Envoy send the body that it waits with."""
UNCHANGED_BODY: Final = written(ProcessingResponse(request_body={}))
"""Let a piece of the request's body go as it is."""
UNCHANGED_TRAILERS: Final = written(ProcessingResponse(request_trailers={}))
"""Let the request's trailers go."""
ANSWER_TRAILERS: Final = written(ProcessingResponse(response_trailers={}))
"""Let an answer's trailers go."""


def answer_head(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Let an engine's head go to the client, with these fields beside its own."""
    response = ProcessingResponse(response_headers={})
    pairs = list(fields)
    if pairs:
        _set(response.response_headers.response.header_mutation.set_headers, pairs)
    return written(response)


def answer_body(chunk: bytes, *, ends: bool, is_duplex: bool) -> bytes:
    """Let a piece of an answer go as it is."""
    response = ProcessingResponse(response_body=BodyResponse())
    if is_duplex:
        stream = response.response_body.response.body_mutation.streamed_response
        stream.body = chunk
        stream.end_of_stream = ends
    return written(response)


def attempt_of(named: Any) -> str:
    """Return which attempt the metadata of an access log entry, by its namespaces, names; empty for none."""
    found = named.get(METADATA)
    value = None if found is None else found.fields.get(_ATTEMPT)
    return "" if value is None else str(value.string_value)


def _steered(forward: Forward, to_header: Way) -> bytes:
    """Return the answer that sends a request where `forward` says; `to_header` is where a header is set in it."""
    header = wrapped(_REQUEST_ID + wrapped(forward.request_id, _VALUE), _HEADER) + _OVERWRITES
    entry = _OURS + wrapped(_NAMED + wrapped(forward.attempt.encode(), _NAME), _OF_OURS)
    if forward.key_refused:
        entry += wrapped(_REFUSED + wrapped(forward.key_refused, _NAME), _OF_OURS)
    alike = _alike(forward.destination, tuple(forward.fields), tuple(forward.without), to_header)
    return alike + wrapped(header, to_header) + wrapped(entry, _METADATA)


@lru_cache(maxsize=_MOST_ALIKE)
def _alike(destination: str, fields: Headers, without: tuple[str, ...], to_header: Way) -> bytes:
    """Return what is the same for all requests to an engine whose clients send the same headers."""
    response = ProcessingResponse()
    response.dynamic_metadata.fields["envoy.lb"].struct_value.fields[DESTINATION].string_value = destination
    common = CommonResponse(clear_route_cache=True)
    _set(common.header_mutation.set_headers, [(DESTINATION.encode(), destination.encode()), *fields])
    common.header_mutation.remove_headers.extend(without)
    return wrapped(written(common), to_header[:2]) + written(response)


def _set(options: object, fields: Iterable[tuple[bytes, bytes]]) -> None:
    for name, value in fields:
        option = options.add()  # type: ignore[attr-defined]
        option.append_action = _OVERWRITE
        option.header.key = name.decode("latin-1")
        option.header.raw_value = value

"""Envoy's messages and our answers to them, as protobuf (envoy.service.ext_proc.v3)."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from envoy.config.core.v3.base_pb2 import HeaderValueOption
from envoy.service.ext_proc.v3.external_processor_pb2 import (
    BodyResponse,
    CommonResponse,
    HttpHeaders,
    ProcessingRequest,
    ProcessingResponse,
)

from millgate.http1.server.contract import Headers, RequestHead
from millgate.http1.wire.fields import Lines
from millgate.servers.extproc.settings import DESTINATION, METADATA

CHUNK_BYTES: Final = 62_000
"""Most of a body in one message: llm-d-router cuts here, below Envoy's limit of 64 KB for one chunk."""
NO_BODY, STREAMED, BUFFERED, FULL_DUPLEX = 0, 1, 2, 4
BY_HEAD: Final = (NO_BODY, STREAMED)
"""Modes in which the head must be answered before anything of a body comes, if any does."""
"""Body modes (envoy.extensions.filters.http.ext_proc.v3.ProcessingMode.BodySendMode)."""
_OVERWRITE: Final = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
_ATTEMPT: Final = "attempt"


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
    fields: Headers
    """Set on the request, over what the client sent."""
    without: Sequence[str]
    """Names of headers that stay here."""


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
    return [
        (header.key.lower().encode(), header.raw_value or header.value.encode())
        for header in headers.headers.headers
    ]


def read_head(fields: Iterable[tuple[bytes, bytes]], peer: str) -> RequestHead | None:
    """Return a request's head; None for one without a method or a path."""
    pseudo: dict[bytes, bytes] = {}
    headers: list[tuple[bytes, bytes]] = []
    for name, value in fields:
        if name.startswith(b":"):
            pseudo[name] = value
        else:
            headers.append((name, value))
    method, target = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
    if not method or not target.startswith(b"/"):
        return None
    named = dict(reversed(headers))
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


def refusal(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> ProcessingResponse:
    """Answer the client ourselves, instead of an engine."""
    response = ProcessingResponse()
    immediate = response.immediate_response
    immediate.status.code = status  # 529 is no name of Envoy's, and passes as a number
    immediate.body = body
    immediate.details = METADATA
    _set(immediate.headers.set_headers, headers)
    return response


def forwarded_head(forward: Forward) -> ProcessingResponse:
    """Let the head go, to the engine that was chosen."""
    response = ProcessingResponse()
    _steer(response, response.request_headers.response, forward)
    return response


def forwarded_whole(forward: Forward, body: bytes | None) -> ProcessingResponse:
    """Let the head and the body that Envoy holds go; another body where it was changed."""
    response = ProcessingResponse()
    common = response.request_body.response
    _steer(response, common, forward)
    if body is not None:
        common.body_mutation.body = body
    return response


def forwarded_body(body: bytes, *, ends: bool) -> Iterator[ProcessingResponse]:
    """Send a body on in chunks; the last one ends the request unless trailers do."""
    for begin in range(0, max(1, len(body)), CHUNK_BYTES):
        response = ProcessingResponse()
        stream = response.request_body.response.body_mutation.streamed_response
        stream.body = body[begin : begin + CHUNK_BYTES]
        stream.end_of_stream = ends and begin + CHUNK_BYTES >= len(body)
        yield response


UNCHANGED_HEAD: Final = ProcessingResponse(request_headers={})
"""Let Envoy send the body that it waits with."""
UNCHANGED_BODY: Final = ProcessingResponse(request_body={})
"""Let a piece of the request's body go as it is."""
UNCHANGED_TRAILERS: Final = ProcessingResponse(request_trailers={})
"""Let the request's trailers go."""
ANSWER_TRAILERS: Final = ProcessingResponse(response_trailers={})
"""Let an answer's trailers go."""


def answer_head(fields: Iterable[tuple[bytes, bytes]]) -> ProcessingResponse:
    """Let an engine's head go to the client, with these fields beside its own."""
    response = ProcessingResponse(response_headers={})
    pairs = list(fields)
    if pairs:
        _set(response.response_headers.response.header_mutation.set_headers, pairs)
    return response


def answer_body(chunk: bytes, *, ends: bool, is_duplex: bool) -> ProcessingResponse:
    """Let a piece of an answer go as it is."""
    response = ProcessingResponse(response_body=BodyResponse())
    if is_duplex:
        stream = response.response_body.response.body_mutation.streamed_response
        stream.body = chunk
        stream.end_of_stream = ends
    return response


def attempt_of(metadata: object) -> str:
    """Return which attempt an access log entry's metadata names, empty for none."""
    found = metadata.filter_metadata.get(METADATA)  # type: ignore[attr-defined]
    if found is None or _ATTEMPT not in found.fields:
        return ""
    return str(found.fields[_ATTEMPT].string_value)


def _steer(response: ProcessingResponse, common: CommonResponse, forward: Forward) -> None:
    common.clear_route_cache = True
    mutation = common.header_mutation
    _set(mutation.set_headers, [(DESTINATION.encode(), forward.destination.encode()), *forward.fields])
    mutation.remove_headers.extend(forward.without)
    metadata = response.dynamic_metadata.fields
    metadata["envoy.lb"].struct_value.fields[DESTINATION].string_value = forward.destination
    metadata[METADATA].struct_value.fields[_ATTEMPT].string_value = forward.attempt


def _set(options: object, fields: Iterable[tuple[bytes, bytes]]) -> None:
    for name, value in fields:
        option = options.add()  # type: ignore[attr-defined]
        option.append_action = _OVERWRITE
        option.header.key = name.decode("latin-1")
        option.header.raw_value = value

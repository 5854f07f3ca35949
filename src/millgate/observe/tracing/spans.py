"""Spans as OpenTelemetry's protocol writes them in JSON: https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding.

Ids are hexadecimal digits, and numbers of 64 bits are strings. Structs stay with the interpreter, as the compiler drops the keywords of
their classes; what fills them is compiled.
"""

from typing import Any, Final

import msgspec

INTERNAL: Final = 1
SERVER: Final = 2
CLIENT: Final = 3
FAILED: Final = 2
"""The code of a status that is an error."""


class Attribute(msgspec.Struct, gc=False):
    """One name with its value, which names its own type."""

    key: str
    value: dict[str, Any]


class SpanEvent(msgspec.Struct, gc=False, rename="camel"):
    """A moment within a span, in nanoseconds since 1970."""

    time_unix_nano: str
    name: str


class SpanStatus(msgspec.Struct, gc=False, omit_defaults=True):
    """How a span ended; no code says nothing."""

    code: int = 0
    message: str = ""


class Span(msgspec.Struct, gc=False, omit_defaults=True, rename="camel"):
    """One stretch of a request's life, in nanoseconds since 1970."""

    trace_id: str
    span_id: str
    name: str
    kind: int
    start_time_unix_nano: str
    end_time_unix_nano: str
    attributes: list[Attribute]
    parent_span_id: str = ""
    events: list[SpanEvent] = []
    status: SpanStatus | None = None


_encoder: Final = msgspec.json.Encoder()


def encoded(spans: list[Span]) -> bytes:
    """Return the spans as the elements of a JSON list, without its brackets."""
    return _encoder.encode(spans)[1:-1]


def export_request(resource: list[Attribute], version: str, spans: list[bytes]) -> bytes:
    """Return the body of one export: what `encoded` made, under the resource that speaks."""
    return (
        b'{"resourceSpans":[{"resource":{"attributes":%b},"scopeSpans":[{"scope":{"name":"millgate","version":%b},"spans":[%b]}]}]}'
        % (
            _encoder.encode(resource),
            _encoder.encode(version),
            b",".join(spans),
        )
    )

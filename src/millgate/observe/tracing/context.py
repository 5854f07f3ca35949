"""The trace that a request belongs to: read from its `traceparent`, or begun here (W3C Trace Context, level 1)."""

import os
import re
from typing import Final, NamedTuple

_TRACEPARENT: Final = re.compile(
    rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL
)
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16
_UNKNOWN_VERSION: Final = b"ff"
_FIRST_VERSION: Final = b"00"
_SAMPLED: Final = 1
_DICE: Final = 2**56
"""Ratios are compared with the last 56 bits of a trace id, which are random by level 2 of the same recommendation."""
_LINE: Final = re.compile(rb"(?i)^traceparent:[^\r\n]*\r\n", re.MULTILINE)


class TraceContext(NamedTuple):
    """Ids in lower-case hexadecimal digits: 32 of the trace, 16 of each span; `parent` is empty where the trace begins here.

    `span` is the request's own, `engine_span` that of its stay at an engine, which the engine is told of.
    """

    trace: str
    parent: str
    span: str
    engine_span: str
    sampled: bool


def context_of(traceparent: bytes | None, share: float) -> TraceContext:
    """Continue the trace that a client names, with its own decision to sample; else begin one, sampled at this share."""
    fresh = os.urandom(32).hex()
    span, engine_span = fresh[32:48], fresh[48:]
    given = None if traceparent is None else _read(traceparent)
    if given is not None:
        return TraceContext(given[0], given[1], span, engine_span, given[2])
    trace = fresh[:32]
    return TraceContext(trace, "", span, engine_span, int(trace[18:], 16) < share * _DICE)


def _read(traceparent: bytes) -> tuple[str, str, bool] | None:
    """Return trace, parent and whether it is sampled; None for what is no traceparent. Later versions may say more at the end."""
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None or found[1] == _UNKNOWN_VERSION or (found[1] == _FIRST_VERSION and found[5] is not None):
        return None
    trace, parent = found[2].decode(), found[3].decode()
    if trace == _NO_TRACE or parent == _NO_SPAN:
        return None
    return trace, parent, bool(int(found[4], 16) & _SAMPLED)


def with_context(lines: bytes, context: TraceContext) -> bytes:
    """Return these header lines with this context instead of any that stands in them."""
    if b"traceparent:" in lines:
        lines = _LINE.sub(b"", lines)
    flags = b"01" if context.sampled else b"00"
    return b"%btraceparent: 00-%b-%b-%b\r\n" % (
        lines,
        context.trace.encode(),
        context.engine_span.encode(),
        flags,
    )

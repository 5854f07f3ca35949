"""The trace that a request belongs to: read from its `traceparent`, or begun here (W3C Trace Context, level 1)."""

import os
import re
from typing import Final

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
_DIGITS: Final = 64
"""Of one attempt: a trace and two spans."""
_AT_ONCE: Final = 64
"""Attempts whose digits are asked for together: asking the system takes as long for all as for one."""


class TraceContext:
    """Ids in lower-case hexadecimal digits: 32 of the trace, 16 of each span; `parent` is empty where the trace begins here.

    `span` is the request's own, `engine_span` that of its stay at an engine, which the engine is told of. `replaces` says that the client
    sent a context, a good one or not. No named tuple: compiled, this is made and read in a third of the time.
    """

    def __init__(self, trace: str, parent: str, fresh: str, sampled: bool, replaces: bool) -> None:
        self.trace: Final = trace
        self.parent: Final = parent
        self.span: Final = fresh[:16]
        self.engine_span: Final = fresh[16:]
        self.sampled: Final = sampled
        self.replaces: Final = replaces


class TraceContexts:
    """Makes contexts; a trace that begins here is sampled at this `share`."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._fresh = ""
        self._at = 0

    def of(self, traceparent: bytes | None) -> TraceContext:
        """Continue the trace that a client names, with its own decision to sample; else begin one."""
        at = self._at
        if at == len(self._fresh):
            self._fresh, at = os.urandom(_AT_ONCE * _DIGITS // 2).hex(), 0
        self._at = at + _DIGITS
        trace, parent, sampled = self._fresh[at : at + 32], "", True
        given = None if traceparent is None else _read(traceparent)
        if given is not None:
            trace, parent, sampled = given
        elif self._share < 1.0:
            sampled = int(trace[18:], 16) < self._share * _DICE
        return TraceContext(trace, parent, self._fresh[at + 32 : at + 64], sampled, traceparent is not None)


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
    if context.replaces:
        lines = _LINE.sub(b"", lines)
    flags = "01" if context.sampled else "00"
    return lines + f"traceparent: 00-{context.trace}-{context.engine_span}-{flags}\r\n".encode()

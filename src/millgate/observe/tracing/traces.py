"""One span tree for each attempt: the request, its wait in the queue, its stay at the engine with the first token in it.

Spans are made of the books once the attempt is over: its path keeps nothing but the context. They are written at once
as OpenTelemetry's protocol has them in JSON (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding):
encoding records takes three times as long. A span's beginning is reckoned from its end: two clock readings would
differ. Names follow the semantic conventions for generative AI (https://opentelemetry.io/docs/specs/semconv/gen-ai/) or
begin with `millgate.`; no span holds a prompt, an answer, a key or a tenant.
"""

import json
import os
import re
import time
from collections.abc import Callable
from typing import Any, Final

from millgate.core.decisions import Ended, Yield
from millgate.core.words import Outcome
from millgate.observe.ring import Facts, place_in_facts
from millgate.observe.tracing.exporter import TraceExporter

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
_MODEL: Final = place_in_facts("model")
_MAX_TOKENS: Final = place_in_facts("max_tokens")
_LANE: Final = place_in_facts("lane")
_LONGEST_MODEL: Final = 128
_MOST_KNOWN: Final = 1024
"""Combinations of names whose text is kept, a megabyte: clients name few models."""
_known: Final[dict[tuple[str, str, str, str, str], tuple[str, str]]] = {}
_GOOD: Final = Outcome.GOOD
_INTERNAL: Final = 1
_SERVER: Final = 2
_CLIENT: Final = 3
_TRACE: Final = '{"traceId":"'
_SPAN: Final = '","spanId":"'
_PARENT: Final = '","parentSpanId":"'
_BEGAN: Final = '","startTimeUnixNano":"'
_OVER: Final = '000","endTimeUnixNano":"'
_QUEUE: Final = f'000","name":"queue","kind":{_INTERNAL},"attributes":[]}}'
_OUTPUT: Final = '"}},{"key":"gen_ai.usage.output_tokens","value":{"intValue":"'
_NUMBER_ENDS: Final = '"}}'
_NEXT: Final = '},{"traceId":"'
_EVENT: Final = ',"events":[{"timeUnixNano":"'
_FIRST_EVENT: Final = '000","name":"first_token"}]}'
"""Times are reckoned in microseconds and told in nanoseconds."""


class TraceContext:
    """W3C Trace Context, level 1. Ids in lower-case hexadecimal digits: 32 of the trace, 16 of each span; `parent` is empty where the trace begins here.

    `span` is the request's own, `engine_span` that of its stay at an engine, which the engine is told of. `replaces`
    says that the client sent a context, a good one or not. No named tuple: compiled, this is made and read in a third
    of the time.
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


class Traces:
    """Makes the spans of attempts that are sampled, `share` of those that come without a trace of their own.

    `begin` each attempt before it arrives; `end` it once. What is kept is bounded by what is under way.
    """

    def __init__(self, exporter: TraceExporter, share: float = 1.0, first_lane: str = "") -> None:
        self._exporter = exporter
        self._made = TraceContexts(share)
        self.first_lane = first_lane
        self._contexts: dict[int, TraceContext] = {}
        self._spans: list[bytes] = []
        self._core_second = -1
        self._core_epoch_s = 0.0

    @property
    def dropped(self) -> int:
        """How many attempts' spans were lost: too many waited, or the collector did not take them."""
        return self._exporter.dropped

    def on_turn(self, tell: Callable[[str], object]) -> None:
        """Have `tell` called, by the thread that sends, when the collector takes no spans any more, and why, or takes them again."""
        self._exporter.on_turn = tell

    # ---- on the path

    def begin(self, attempt: int, traceparent: bytes | None) -> str:
        """Take this attempt into the trace that its client names, or begin one; return the trace's id."""
        self._contexts[attempt] = context = self._made.of(traceparent)
        return context.trace

    def onward(self, attempt: int, lines: bytes) -> bytes:
        """Return an attempt's header lines for its engine with its context in them."""
        context = self._contexts.get(attempt)
        return lines if context is None else with_context(lines, context)

    # ---- in the books

    def end(self, arrived_at: float, at: float, facts: Facts, final: Ended | Yield) -> str:
        """Make the spans of an attempt that is over at core time `at`, if it is sampled; return the id of its trace."""
        number: Any = final[0]
        context = self._contexts.pop(number, None) or self._made.of(None)
        if context.sampled:
            over = self._moment(at)
            began = over - _micros(at - arrived_at)
            if type(final) is Ended:
                self._spans.append(_ended(context, began, over, facts, final).encode())
            elif type(final) is Yield:
                lane = facts[_LANE] or self.first_lane if final.classed is None else final.classed.lane
                self._spans.append(_refused(context, began, over, facts, str(lane), final).encode())
        return context.trace

    def hand_over(self) -> None:
        """Let everything that was made be sent soon."""
        if self._spans:
            spans, self._spans = self._spans, []
            self._exporter.add(b",".join(spans), len(spans))

    def close(self) -> None:
        """Send what waits, within about a second, and stop."""
        self.hand_over()
        self._exporter.close()

    def _moment(self, at: float) -> int:
        """Return microseconds since 1970 of a core time, which is the system's monotonic time; clocks are compared once a second."""
        core_second = int(at)
        if core_second != self._core_second:
            self._core_second = core_second
            self._core_epoch_s = time.time() - time.monotonic()
        return int((at + self._core_epoch_s) * 1e6)


# Texts are joined from pieces of which most are the same for every span: formats within formats would copy them three
# times. A record is taken apart as a plain tuple: asked for each field by its name, it would be searched.


def _refused(context: TraceContext, began: int, over: int, facts: Facts, lane: str, final: Yield) -> str:
    reason = final.reason.value
    own_words, _ = _words_of(facts, lane, "yielded", "")
    hint = _number("millgate.retry_after_ms", int(1000.0 * final.retry_after_s)) if final.retry else ""
    own = _own(context, str(began), str(over))
    return f"{own}{own_words}{_text('error.type', reason)}{hint}]{_failed(reason)}}}"


def _ended(context: TraceContext, began: int, over: int, facts: Facts, final: tuple[Any, ...]) -> str:
    _, outcome, lane, engine, waited_s, _, ttft_s, prompt, output, cause, cached = final
    # A member of an enumeration takes longer to find than all of the text that is kept under it.
    word = "good" if outcome is _GOOD else outcome.value
    own_words, stay_words = _words_of(facts, lane, word, engine or "")
    more, status, came, ended = "", "", str(began), str(over)
    if cause is not None:
        more = _text("error.type", cause.value)
        status = _failed(cause.value) if outcome is Outcome.ENGINE_FAILED else ""
    if engine is None:
        own = f"{_own(context, came, ended)}{own_words}{more}]{status}}}"
        return own + _queued(context, came, ended) if over > began else own
    if cached is not None:
        more += _number("gen_ai.usage.cache_read.input_tokens", cached)
    last = "}" if ttft_s is None else f"{_EVENT}{began + _micros(ttft_s)}{_FIRST_EVENT}"
    waited_us = _micros(waited_s)
    admitted = str(began + waited_us) if waited_us > 0 else came
    above = _PARENT + context.parent if context.parent else ""
    # In one list, as it stands: to put lists together costs as much as to join them.
    own = "".join(
        [
            _TRACE,
            context.trace,
            _SPAN,
            context.span,
            above,
            _BEGAN,
            came,
            _OVER,
            ended,
            own_words,
            _digits(prompt),
            _OUTPUT,
            _digits(output),
            _NUMBER_ENDS,
            more,
            "]",
            status,
            _NEXT,
            context.trace,
            _SPAN,
            context.engine_span,
            _PARENT,
            context.span,
            _BEGAN,
            admitted,
            _OVER,
            ended,
            stay_words,
            status,
            last,
        ]
    )
    return own + _queued(context, came, admitted) if waited_us > 0 else own


def _own(context: TraceContext, began: str, over: str) -> str:
    """Return the beginning of an attempt's own span."""
    above = _PARENT + context.parent if context.parent else ""
    return f"{_TRACE}{context.trace}{_SPAN}{context.span}{above}{_BEGAN}{began}{_OVER}{over}"


def _queued(context: TraceContext, began: str, over: str) -> str:
    """Return one more span, of the wait; its id is derived from the request's own, so that no dice are needed."""
    own = format(int(context.span, 16) ^ 1, "016x")
    ids = f"{context.trace}{_SPAN}{own}{_PARENT}{context.span}"
    return f",{_TRACE}{ids}{_BEGAN}{began}{_OVER}{over}{_QUEUE}"


def _micros(seconds: float) -> int:
    return int(seconds * 1e6)


def _digits(number: int) -> str:
    """Return a number in digits: compiled, sooner than `str` of what might be anything."""
    return str(number)


def _words_of(facts: Facts, lane: str, outcome: str, engine: str) -> tuple[str, str]:
    """Return what is the same for most requests: of their own span, whose list of attributes is still open, and of the stay at an engine."""
    key = ("embeddings" if facts[_MAX_TOKENS] == 0 else "chat", facts[_MODEL], lane, outcome, engine)
    words = _known.get(key)
    if words is None:
        if len(_known) == _MOST_KNOWN:
            _known.clear()
        words = _known[key] = _words(*key)
    return words


def _words(operation: str, model: str, lane: str, outcome: str, engine: str) -> tuple[str, str]:
    model = model[:_LONGEST_MODEL]
    name = json.dumps(f"{operation} {model}" if model else operation)
    asked = _text("gen_ai.operation.name", operation)[1:] + _text("gen_ai.request.model", model)
    became = _text("millgate.lane", lane) + _text("millgate.outcome", outcome)
    used = ',{"key":"gen_ai.usage.input_tokens","value":{"intValue":"' if engine else ""
    return (
        f'000","name":{name},"kind":{_SERVER},"attributes":[{asked}{became}{used}',
        f'000","name":{name},"kind":{_CLIENT},"attributes":[{_text("server.address", engine)[1:]}]',
    )


def _failed(why: str) -> str:
    return f',"status":{{"code":2,"message":"{why}"}}'


def _text(key: str, value: str) -> str:
    """Return one more attribute, whatever stands in its value."""
    return f',{{"key":"{key}","value":{{"stringValue":{json.dumps(value)}}}}}'


def _number(key: str, value: int) -> str:
    """Return one more attribute; numbers of 64 bits are strings."""
    return f',{{"key":"{key}","value":{{"intValue":"{value}"}}}}'

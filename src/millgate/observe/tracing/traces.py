"""One span tree for each attempt: the request, its wait in the queue, its stay at the engine with the first token in it.

Spans are made once the attempt is over, of what the books know of it: nothing is kept on its path but the context. Names follow the
semantic conventions for generative AI (https://opentelemetry.io/docs/specs/semconv/gen-ai/), what they have no name for begins with
`millgate.`; no span holds a prompt, an answer, a key or a tenant.
"""

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from millgate.core.decisions import Ended, Yield
from millgate.core.words import Outcome
from millgate.observe.ring import Facts, place_in_facts
from millgate.observe.tracing.context import TraceContext, context_of, with_context
from millgate.observe.tracing.exporter import TraceExporter
from millgate.observe.tracing.spans import (
    CLIENT,
    FAILED,
    INTERNAL,
    SERVER,
    Attribute,
    Span,
    SpanEvent,
    SpanStatus,
)

_MODEL: Final = place_in_facts("model")
_MAX_TOKENS: Final = place_in_facts("max_tokens")
_LANE: Final = place_in_facts("lane")
_LONGEST_MODEL: Final = 128
_KNOWN: Final = 256
"""Combinations of names whose attributes are kept: clients name few models."""


class Traces:
    """Makes the spans of attempts that are sampled, `share` of those that come without a trace of their own.

    `begin` each attempt before it arrives; `end` it once. What is kept is bounded by what is under way.
    """

    def __init__(self, exporter: TraceExporter, share: float = 1.0, first_lane: str = "") -> None:
        self._exporter = exporter
        self._share = share
        self._first_lane = first_lane
        self._contexts: dict[int, TraceContext] = {}
        self._spans: list[Span] = []
        self._attempts = 0
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
        self._contexts[attempt] = context = context_of(traceparent, self._share)
        return context.trace

    def onward(self, attempt: int, lines: bytes) -> bytes:
        """Return an attempt's header lines for its engine with its context in them."""
        context = self._contexts.get(attempt)
        return lines if context is None else with_context(lines, context)

    # ---- in the books

    def end(self, arrived_at: float, at: float, facts: Facts, final: Ended | Yield) -> str:
        """Make the spans of an attempt that is over at core time `at`, if it is sampled; return the id of its trace."""
        number: Any = final[0]
        context = self._contexts.pop(number, None) or context_of(None, self._share)
        if context.sampled:
            self._attempts += 1
            began, over = self._moment(arrived_at), self._moment(at)
            if type(final) is Ended:
                self._ended(context, began, over, facts, final)
            elif type(final) is Yield:
                self._refused(context, began, over, facts, final)
        return context.trace

    def hand_over(self) -> None:
        """Let everything that was made be sent soon."""
        if self._spans:
            spans, self._spans = self._spans, []
            count, self._attempts = self._attempts, 0
            self._exporter.add(spans, count)

    def close(self) -> None:
        """Send what waits, within about a second, and stop."""
        self.hand_over()
        self._exporter.close()

    def _moment(self, at: float) -> int:
        """Return nanoseconds since 1970 of a core time, which is the system's monotonic time; clocks are compared once a second."""
        core_second = int(at)
        if core_second != self._core_second:
            self._core_second = core_second
            self._core_epoch_s = time.time() - time.monotonic()
        return int((at + self._core_epoch_s) * 1e6) * 1000

    def _refused(self, context: TraceContext, began: int, over: int, facts: Facts, final: Yield) -> None:
        lane = facts[_LANE] or self._first_lane if final.classed is None else final.classed.lane
        operation, model = _operation(facts), str(facts[_MODEL])
        attributes = [
            *_asked(operation, model, str(lane), "yielded"),
            _text("error.type", final.reason.value),
        ]
        if final.retry:
            attributes.append(_number("millgate.retry_after_ms", int(1000.0 * final.retry_after_s)))
        status = SpanStatus(FAILED, final.reason.value)
        self._add(context, _name(operation, model), SERVER, (began, over), attributes, status)

    def _ended(self, context: TraceContext, began: int, over: int, facts: Facts, final: Ended) -> None:
        operation, model = _operation(facts), str(facts[_MODEL])
        name, attributes = (
            _name(operation, model),
            list(_asked(operation, model, final.lane, final.outcome.value)),
        )
        status = None
        if final.cause is not None:
            attributes.append(_text("error.type", final.cause.value))
            if final.outcome is Outcome.ENGINE_FAILED:
                status = SpanStatus(FAILED, final.cause.value)
        if final.engine is not None:
            attributes += _used(final)
        self._add(context, name, SERVER, (began, over), attributes, status)
        admitted = over if final.engine is None else began + int(final.waited_s * 1e9)
        if admitted > began:
            self._spans.append(_child(context, "queue", INTERNAL, (began, admitted), []))
        if final.engine is not None:
            stay = _child(context, name, CLIENT, (admitted, over), _place(final.engine), status)
            stay.span_id = context.engine_span
            if final.ttft_s is not None:
                stay.events = [SpanEvent(str(began + int(final.ttft_s * 1e9)), "first_token")]
            self._spans.append(stay)

    def _add(
        self,
        context: TraceContext,
        name: str,
        kind: int,
        times: tuple[int, int],
        attributes: list[Attribute],
        status: SpanStatus | None,
    ) -> None:
        own = Span(
            context.trace, context.span, name, kind, str(times[0]), str(times[1]), attributes, context.parent
        )
        own.status = status
        self._spans.append(own)


def _child(
    context: TraceContext,
    name: str,
    kind: int,
    times: tuple[int, int],
    attributes: list[Attribute],
    status: SpanStatus | None = None,
) -> Span:
    """Return a span within the request's own; its id is derived from that one's, so that no dice are needed."""
    own_id = format(int(context.span, 16) ^ 1, "016x")
    child = Span(context.trace, own_id, name, kind, str(times[0]), str(times[1]), attributes, context.span)
    child.status = status
    return child


def _operation(facts: Facts) -> str:
    return "embeddings" if facts[_MAX_TOKENS] == 0 else "chat"


@lru_cache(maxsize=_KNOWN)
def _name(operation: str, model: str) -> str:
    return f"{operation} {model[:_LONGEST_MODEL]}" if model else operation


@lru_cache(maxsize=_KNOWN)
def _asked(operation: str, model: str, lane: str, outcome: str) -> list[Attribute]:
    """Return what is the same for most requests; it must not be changed."""
    return [
        _text("gen_ai.operation.name", operation),
        _text("gen_ai.request.model", model[:_LONGEST_MODEL]),
        _text("millgate.lane", lane),
        _text("millgate.outcome", outcome),
    ]


@lru_cache(maxsize=_KNOWN)
def _place(engine: str) -> list[Attribute]:
    """Return where an engine's span was; it must not be changed."""
    return [_text("server.address", engine)]


def _used(final: Ended) -> list[Attribute]:
    used = [
        _number("gen_ai.usage.input_tokens", final.prompt_tokens),
        _number("gen_ai.usage.output_tokens", final.output_tokens),
    ]
    if final.cached_tokens is not None:
        used.append(_number("gen_ai.usage.cache_read.input_tokens", final.cached_tokens))
    return used


def _text(key: str, value: str) -> Attribute:
    return Attribute(key, {"stringValue": value})


def _number(key: str, value: int) -> Attribute:
    return Attribute(key, {"intValue": str(value)})

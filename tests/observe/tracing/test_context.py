"""The trace context of a request: read as the recommendation says, or begun, and written for the engine."""

import re

import pytest
from hypothesis import given, strategies as st

from millgate.observe.tracing.traces import TraceContext, TraceContexts, with_context

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{PARENT}-01".encode()
LINES = b"user-agent: x\r\ntraceparent: 00-1\r\naccept: */*\r\n"


def context_of(traceparent: bytes | None, share: float) -> TraceContext:
    return TraceContexts(share).of(traceparent)


def test_a_trace_that_a_client_names_is_continued_with_its_own_decision() -> None:
    context = context_of(GIVEN, 0.0)
    assert (context.trace, context.parent, context.sampled) == (TRACE, PARENT, True)
    assert not context_of(GIVEN[:-1] + b"0", 1.0).sampled
    assert len({context.span, context.engine_span, PARENT}) == 3


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        GIVEN.upper(),
        GIVEN + b"-more",
        b"ff" + GIVEN[2:],
        f"00-{'0' * 32}-{PARENT}-01".encode(),
        f"00-{TRACE}-{'0' * 16}-01".encode(),
        GIVEN[:-1],
        GIVEN + b"\n",
    ],
)
def test_what_is_no_traceparent_begins_a_trace(damaged: bytes) -> None:
    context = context_of(damaged, 1.0)
    assert context.parent == ""
    assert context.trace != TRACE


def test_a_later_version_may_say_more_at_its_end() -> None:
    assert context_of(b"01" + GIVEN[2:] + b"-more", 1.0).trace == TRACE


def test_of_new_traces_the_asked_share_is_sampled() -> None:
    assert not any(context_of(None, 0.0).sampled for _ in range(100))
    assert all(context_of(None, 1.0).sampled for _ in range(100))
    assert 300 < sum(context_of(None, 0.5).sampled for _ in range(1000)) < 700


def test_no_two_requests_share_an_id() -> None:
    contexts = TraceContexts(1.0)
    made = [contexts.of(None) for _ in range(200)]
    assert len({given for each in made for given in (each.trace, each.span, each.engine_span)}) == 600


def test_the_engine_gets_one_context_and_every_other_line_as_it_was() -> None:
    context = context_of(GIVEN, 1.0)
    own = f"traceparent: 00-{TRACE}-{context.engine_span}-01\r\n".encode()
    assert with_context(LINES, context) == b"user-agent: x\r\naccept: */*\r\n" + own
    assert with_context(b"accept: */*\r\n", context) == b"accept: */*\r\n" + own


@given(st.binary(max_size=80))
def test_any_bytes_are_read_without_an_error(value: bytes) -> None:
    assert re.fullmatch(r"[0-9a-f]{32}", context_of(value, 0.5).trace)

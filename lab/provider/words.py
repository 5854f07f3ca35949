"""What hosted providers say, as bytes: refusals, answers and events of OpenAI and Anthropic, with their headers."""

import json
from collections.abc import Iterator
from math import ceil
from typing import Any

from lab.provider.law import LimitVerdict, ProviderLaw
from lab.upstream import answers
from millgate.core.decisions import QuotaState
from millgate.core.words import QuotaKind
from millgate.dialects.quota_headers import go_duration, write_anthropic, write_openai

# How Anthropic documents its token headers: rounded to the nearest thousand.
_ROUNDED_TO = 1000
_WORD = "word "


def limit_fields(law: ProviderLaw, now: float, wall_now_s: float, *, anthropic: bool) -> list[str]:
    """Return the header lines that tell how the account stands."""
    states = [QuotaState("", *standing) for standing in law.standing(now)]
    if anthropic:
        pairs = write_anthropic([_rounded(state) for state in states], wall_now_s)
    else:
        pairs = write_openai(states)
    return [f"{name.decode()}: {value.decode()}" for name, value in pairs]


def refusal(verdict: LimitVerdict, limit: float, fields: list[str], *, anthropic: bool) -> bytes:
    """Return the whole 429 of a limit; the hint is left out where the request is too large for ever."""
    assert verdict.refused_by is not None
    kind = verdict.refused_by
    numbers = f"{kind.upper()}: limit {limit:.0f}, used {verdict.used:.0f}, requested {verdict.requested:.0f}"
    later = "request too large" if verdict.too_large else f"try again in {go_duration(verdict.wait_s)}"
    message = f"Rate limit reached on {numbers}; {later}."
    hints = [] if verdict.too_large else [f"retry-after: {max(1, ceil(verdict.wait_s))}"]
    if anthropic:
        body = anthropic_error("rate_limit_error", message)
    else:
        hints += [] if verdict.too_large else [f"retry-after-ms: {ceil(verdict.wait_s * 1000)}"]
        of = "requests" if kind in {QuotaKind.RPM, QuotaKind.RPD} else "tokens"
        body = openai_error(of, "rate_limit_exceeded", message)
    return answers.whole(body, 429, answers.JSON, *hints, *fields)


def overload(hint_s: float | None, *, anthropic: bool) -> bytes:
    """Return the whole answer of a provider that is overloaded itself: 529, or OpenAI's 503."""
    hints = [] if hint_s is None else [f"retry-after: {max(1, ceil(hint_s))}"]
    if anthropic:
        return answers.whole(anthropic_error("overloaded_error", "Overloaded"), 529, answers.JSON, *hints)
    body = openai_error("service_unavailable_error", "server_is_overloaded", "The server is overloaded.")
    return answers.whole(body, 503, answers.JSON, *hints)


def openai_error(kind: str, code: str, message: str) -> bytes:
    """Return an error body of OpenAI's."""
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()


def anthropic_error(kind: str, message: str) -> bytes:
    """Return an error body of Anthropic's."""
    return json.dumps(
        {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    ).encode()


def whole_answer(prompt_tokens: int, cached_tokens: int, output_tokens: int, *, anthropic: bool) -> bytes:
    """Return the body of an answer that is not streamed."""
    text = _WORD * output_tokens
    if not anthropic:
        usage = _openai_usage(prompt_tokens, cached_tokens, output_tokens)
        return answers.completion(text, output_tokens, usage=usage)
    message = _message(
        [{"type": "text", "text": text}], _anthropic_usage(prompt_tokens, cached_tokens, output_tokens)
    )
    return json.dumps({**message, "stop_reason": "end_turn"}).encode()


def opening(prompt_tokens: int, cached_tokens: int, *, anthropic: bool) -> bytes:
    """Return the events before the first token."""
    if not anthropic:
        return answers.event("")
    start = {"message": _message([], _anthropic_usage(prompt_tokens, cached_tokens, 1))}
    block = {"index": 0, "content_block": {"type": "text", "text": ""}}
    return _named("message_start", start) + _named("content_block_start", block)


def tokens(count: int, *, anthropic: bool) -> bytes:
    """Return one event with so many tokens."""
    if not anthropic:
        return answers.event(_WORD * count)
    return _named("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": _WORD * count}})


def closing(
    prompt_tokens: int, cached_tokens: int, output_tokens: int, *, anthropic: bool, usage: bool
) -> bytes:
    """Return the events that end a stream; OpenAI's usage only where it was asked for."""
    if anthropic:
        delta = {"delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": output_tokens}}
        return b"".join(
            [
                _named("content_block_stop", {"index": 0}),
                _named("message_delta", delta),
                _named("message_stop", {}),
            ]
        )
    events = [answers.event(finish="stop")]
    if usage:
        spent = _openai_usage(prompt_tokens, cached_tokens, output_tokens)
        events.append(answers.event(choices=[], usage=spent))
    return b"".join([*events, answers.DONE])


def pieces(total: int, size: int) -> Iterator[int]:
    """Yield counts of at most `size` that add up to `total`."""
    for begin in range(0, total, size):
        yield min(size, total - begin)


def _rounded(state: QuotaState) -> QuotaState:
    if state.kind in {QuotaKind.RPM, QuotaKind.RPD}:
        return state
    return state._replace(remaining=round(state.remaining / _ROUNDED_TO) * _ROUNDED_TO)


def _message(content: list[dict[str, str]], usage: dict[str, int]) -> dict[str, Any]:
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
    return {**head, "content": content, "stop_reason": None, "stop_sequence": None, "usage": usage}


def _openai_usage(prompt_tokens: int, cached_tokens: int, output_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def _anthropic_usage(prompt_tokens: int, cached_tokens: int, output_tokens: int) -> dict[str, int]:
    return {
        "input_tokens": prompt_tokens - cached_tokens,
        "cache_read_input_tokens": cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": output_tokens,
    }


def _named(name: str, body: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **body})}\n\n".encode()

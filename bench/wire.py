"""The bytes of the bench: what the users ask, what the engine answers, written once and sent as they are."""

from collections.abc import Iterator
from typing import NamedTuple

MODEL = b"llama-3.1-8b"

CHUNKS_PER_STREAM = 64
"""Events with content in one streamed answer, before the closing `[DONE]`: the length that the targets name."""

HOLD_MODEL = b"queue"
"""A request for this model is answered with one event and then nothing: it keeps a permit until it hangs up."""

STAMPED_MODEL = b"stamped"
"""A request for this model is answered with events without end, each of which says when it was written."""

_PROMPT = b"Explain in plain words how a canal lock lifts a boat, and why the gates point upstream. " * 6

# The header set of the openai SDK 3.52 as it leaves the client, so that both proxies carry a real one.
_SDK_HEADERS = (
    b"host: 127.0.0.1\r\n"
    b"accept-encoding: gzip, deflate\r\n"
    b"connection: keep-alive\r\n"
    b"accept: application/json\r\n"
    b"content-type: application/json\r\n"
    b"user-agent: OpenAI/Python 3.52.0\r\n"
    b"x-stainless-lang: python\r\n"
    b"x-stainless-package-version: 3.52.0\r\n"
    b"x-stainless-os: Linux\r\n"
    b"x-stainless-arch: x64\r\n"
    b"x-stainless-runtime: CPython\r\n"
    b"x-stainless-runtime-version: 3.11.7\r\n"
    b"authorization: Bearer sk-bench-0000000000000000\r\n"
    b"x-stainless-async: false\r\n"
    b"x-stainless-retry-count: 0\r\n"
)


class Request(NamedTuple):
    """One whole POST of a chat completion, cut where a number of eight digits makes each unlike the others."""

    before: bytes
    after: bytes

    def numbered(self, number: int) -> bytes:
        """Return the request with this number in its prompt."""
        return b"%s%08d%s" % (self.before, number, self.after)


def chat_request(*, stream: bool, model: bytes = MODEL) -> Request:
    """Return the request that every user of the bench sends."""
    before = (
        b'{"messages":[{"role":"system","content":"You are a patient teacher."},{"role":"user","content":"'
    )
    after = b' %s"}],"model":"%s","max_tokens":%d,"stream":%s}' % (
        _PROMPT,
        model,
        CHUNKS_PER_STREAM,
        b"true" if stream else b"false",
    )
    length = len(before) + 8 + len(after)
    head = b"POST /v1/chat/completions HTTP/1.1\r\n%scontent-length: %d\r\n\r\n" % (_SDK_HEADERS, length)
    return Request(head + before, after)


def _answer(content_type: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nserver: engine\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (
        content_type,
        len(body),
        body,
    )


JSON_ANSWER = _answer(
    b"application/json",
    b'{"id":"chatcmpl-7c1f0a6e5d9b4f0e","object":"chat.completion","created":1763700000,"model":"%s","choices":'
    b'[{"index":0,"message":{"role":"assistant","content":"%s"},"logprobs":null,"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":131,"completion_tokens":64,"total_tokens":195}}' % (MODEL, b"word " * 64),
)

MODELS_ANSWER = _answer(
    b"application/json", b'{"object":"list","data":[{"id":"%s","object":"model","owned_by":"bench"}]}' % MODEL
)

METRICS_ANSWER = _answer(
    b"text/plain; version=0.0.4",
    b'vllm:num_requests_running{model_name="%s"} 1\nvllm:num_requests_waiting{model_name="%s"} 0\n'
    % (MODEL, MODEL),
)

HEALTH_ANSWER = _answer(b"application/json", b"{}")

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: engine\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def _framed(payload: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def _event(delta: bytes, finish: bytes, usage: bytes) -> bytes:
    return _framed(
        b'data: {"id":"chatcmpl-7c1f0a6e5d9b4f0e","object":"chat.completion.chunk","created":1763700000,'
        b'"model":"%s","choices":[{"index":0,"delta":%s,"logprobs":null,"finish_reason":%s}]%s}\n\n'
        % (MODEL, delta, finish, usage)
    )


_STAMP_DIGITS = 16
_STAMP_MARK = b'"content":"'
_STAMPED = _event(b'{"content":"%s"}' % (b"_" * _STAMP_DIGITS), b"null", b"").split(b"_" * _STAMP_DIGITS)


def stamped_event(now_ns: int) -> bytes:
    """Return an event, framed, whose text is the time at which it is written."""
    return b"%s%016x%s" % (_STAMPED[0], now_ns, _STAMPED[1])


def stamps(data: bytes) -> Iterator[int]:
    """Return the times in the events that are whole in these bytes; one that is cut by a read is left out."""
    at = data.find(_STAMP_MARK)
    while at >= 0:
        digits = data[at + len(_STAMP_MARK) : at + len(_STAMP_MARK) + _STAMP_DIGITS]
        if len(digits) == _STAMP_DIGITS:
            yield int(digits, 16)
        at = data.find(_STAMP_MARK, at + 1)


def stream_writes(*, with_usage: bool) -> tuple[bytes, ...]:
    """Return the writes of one streamed answer after its head, as vLLM makes them: one event each, then the end.

    With usage asked for, every event carries `usage: null` and one more comes before `[DONE]`.
    """
    usage = b',"usage":null' if with_usage else b""
    words = [
        _event(b'{"content":" word%02d"}' % index, b"null", usage) for index in range(CHUNKS_PER_STREAM - 2)
    ]
    writes = [
        _event(b'{"role":"assistant","content":""}', b"null", usage),
        *words,
        _event(b"{}", b'"stop"', usage),
    ]
    if with_usage:
        writes.append(
            _framed(
                b'data: {"id":"chatcmpl-7c1f0a6e5d9b4f0e","object":"chat.completion.chunk","created":1763700000,'
                b'"model":"%s","choices":[],"usage":{"prompt_tokens":131,"completion_tokens":64,'
                b'"total_tokens":195}}\n\n' % MODEL
            )
        )
    writes.append(_framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    return tuple(writes)

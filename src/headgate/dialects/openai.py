"""The OpenAI dialect: chat completions and completions, as vLLM, SGLang, llama.cpp, TGI and OpenAI speak them.

Requests are decoded into structs that skip what they do not know: a 2 MB body costs 0.6 ms and unknown fields
pass untouched. Errors name the field and the limit and never repeat the body.
"""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Raw

from headgate.dialects import duplicates
from headgate.dialects.contract import (
    MOST_TOKENS,
    BadInputError,
    EngineError,
    RequestFacts,
    StreamEvent,
    Usage,
)
from headgate.dialects.sse import payload

MOST_ANSWERS = 128
MOST_MODEL_CHARS = 256
MOST_PROMPTS = 1_024
# OpenAI documents 4 stop strings, 128 tools and 300 biases; engines take more. These bounds only keep a
# request from blocking an engine's own event loop (CVE-2026-34756 is what happens without them).
MOST_STOPS = 256
MOST_BIASES = 4_096
MOST_TOOLS = 1_024
MOST_MESSAGES = 65_536

_LIMITS = {
    "max_tokens": f"an integer from 1 to {MOST_TOKENS}",
    "max_completion_tokens": f"an integer from 1 to {MOST_TOKENS}",
    "n": f"an integer from 1 to {MOST_ANSWERS}",
    "best_of": f"an integer from 1 to {MOST_ANSWERS}",
    "stop": f"a string or at most {MOST_STOPS} strings",
    "logit_bias": f"an object of at most {MOST_BIASES} entries",
    "tools": f"an array of at most {MOST_TOOLS} entries",
    "messages": f"an array of 1 to {MOST_MESSAGES} messages",
    "prompt": f"a string, an array of token ids, or at most {MOST_PROMPTS} of either",
    "stream": "true or false",
    "model": f"at most {MOST_MODEL_CHARS} printable characters",
}

_Tokens = Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
_Answers = Annotated[int, Meta(ge=1, le=MOST_ANSWERS)]
_ABSENT = Raw(b"")


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Request(msgspec.Struct):
    model: Annotated[str, Meta(max_length=MOST_MODEL_CHARS)] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: _Tokens | None = None
    n: _Answers | None = None
    stop: str | Annotated[list[str], Meta(max_length=MOST_STOPS)] | None = None
    logit_bias: Annotated[dict[str, Raw], Meta(max_length=MOST_BIASES)] | None = None


class _Chat(_Request, kw_only=True):
    messages: Annotated[list[Raw], Meta(min_length=1, max_length=MOST_MESSAGES)]
    max_completion_tokens: _Tokens | None = None
    tools: Annotated[list[Raw], Meta(max_length=MOST_TOOLS)] | None = None


class _Completion(_Request, kw_only=True):
    prompt: Raw = _ABSENT
    best_of: _Answers | None = None


class _Delta(msgspec.Struct):
    content: Raw = _ABSENT
    reasoning_content: Raw = _ABSENT
    reasoning: Raw = _ABSENT
    tool_calls: Raw = _ABSENT
    function_call: Raw = _ABSENT
    refusal: Raw = _ABSENT
    audio: Raw = _ABSENT


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: Raw = _ABSENT
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Raw = _ABSENT


class _ErrorCode(msgspec.Struct):
    code: int | str | None = None
    type: str | None = None


_AnyRequest = TypeVar("_AnyRequest", bound=_Request)

_chat = msgspec.json.Decoder(_Chat)
_completion = msgspec.json.Decoder(_Completion)
_prompts = msgspec.json.Decoder(Annotated[list[Raw], Meta(max_length=MOST_PROMPTS)])
_chunk = msgspec.json.Decoder(_Chunk)
_error_code = msgspec.json.Decoder(_ErrorCode)

_NOTHING = frozenset((b"", b"null", b'""', b"[]", b"{}"))
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_PROMPT_TOKENS = re.compile(rb'"prompt_tokens"\s*:\s*(\d{1,8})[,}\s]')
_OUTPUT_TOKENS = re.compile(rb'"completion_tokens"\s*:\s*(\d{1,8})[,}\s]')
# As every engine writes it: found in one search. Anything else is searched for field by field.
_PLAIN_USAGE = re.compile(
    rb'"usage"\s*:\s*\{\s*"prompt_tokens"\s*:\s*(\d{1,7})\s*,[^{}]*?"completion_tokens"\s*:\s*(\d{1,7})[,}\s]'
)
_ABORT = re.compile(rb'"finish_reason"\s*:\s*"abort"')
_FIELD = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<where>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(\w+)`")
_OPENING_BRACE = re.compile(rb"\s*\{")
# Words that engines and OpenAI use where the code is not a number.
_STATUS_OF_WORD = {
    "rate_limit_exceeded": 429,
    "slow_down": 429,
    "server_is_overloaded": 503,
    "overloaded": 503,
    "invalid_request_error": 400,
}


def _read_chat(body: bytes) -> RequestFacts:
    request = _decode(_chat, body)
    limit = request.max_completion_tokens
    return _facts(request, limit if limit is not None else request.max_tokens, 1)


def _read_completion(body: bytes) -> RequestFacts:
    request = _decode(_completion, body)
    if request.best_of is not None and request.best_of > (request.n or 1):
        request.n = request.best_of
    return _facts(request, request.max_tokens, _count_prompts(bytes(request.prompt)))


def _facts(request: _Request, max_tokens: int | None, prompts: int) -> RequestFacts:
    options = request.stream_options
    model = request.model or ""
    if not model.isprintable():
        raise BadInputError("model: control characters are not allowed", "model")
    return RequestFacts(
        model,
        request.stream is True,
        max_tokens,
        (request.n or 1) * prompts,
        None if options is None else options.include_usage is True,
    )


def _count_prompts(prompt: bytes) -> int:
    """A batch holds strings or arrays; a lone array of numbers is one prompt of token ids."""
    inner = prompt[1:].lstrip() if prompt.startswith(b"[") else b""
    if inner[:1] not in {b'"', b"["}:
        if prompt[:1] not in {b"", b'"', b"[", b"n"}:
            raise BadInputError(f"prompt: expected {_LIMITS['prompt']}", "prompt")
        return 1
    try:
        return len(_prompts.decode(prompt))
    except msgspec.ValidationError:
        raise BadInputError(f"prompt: expected {_LIMITS['prompt']}", "prompt") from None


def _decode(decoder: msgspec.json.Decoder[_AnyRequest], body: bytes) -> _AnyRequest:
    """Decode or say what is wrong, without a word of the content."""
    try:
        if not body.isascii():
            body.decode()  # msgspec skips unknown strings without looking at their UTF-8
        request = decoder.decode(body)
    except UnicodeDecodeError as error:
        raise BadInputError(f"body is not valid UTF-8 (byte {error.start})") from None
    except msgspec.ValidationError as error:
        raise _named(str(error)) from None
    except msgspec.DecodeError as error:
        raise BadInputError(
            f"body is not valid JSON: {str(error).removeprefix('JSON is malformed: ')}"
        ) from None
    except RecursionError:
        raise BadInputError("body is nested too deeply") from None
    if doubled := duplicates.find(body):
        raise BadInputError(f"{doubled}: the field appears more than once", doubled)
    return request


def _named(complaint: str) -> BadInputError:
    """Turn a validation complaint into one that names the field and its limit."""
    if missing := _MISSING.search(complaint):
        field = missing.group(1)
        return BadInputError(f"{field}: the field is required: {_LIMITS[field]}", field)
    match = _FIELD.match(complaint)
    what, where = (match.group("what"), match.group("where")) if match else (complaint, None)
    what = what.replace("`", "").replace("Expected", "expected", 1)
    if not where:
        return BadInputError(f"body: {what}")
    field = where.partition("[")[0].partition(".")[0]
    limit = _LIMITS.get(field)
    return BadInputError(f"{where}: {what}" + (f"; allowed: {limit}" if limit else ""), field)


def _is_content(choice: _Choice) -> bool:
    if bytes(choice.text) not in _NOTHING:
        return True
    delta = choice.delta
    return delta is not None and any(
        bytes(part) not in _NOTHING
        for part in (
            delta.content,
            delta.reasoning_content,
            delta.reasoning,
            delta.tool_calls,
            delta.function_call,
            delta.refusal,
            delta.audio,
        )
    )


def _sane(tokens: int | None) -> int | None:
    return tokens if tokens is not None and 0 <= tokens <= MOST_TOKENS else None


def _count(pattern: re.Pattern[bytes], answer: bytes, start: int) -> int | None:
    found = pattern.search(answer, start)
    return _sane(int(found[1])) if found is not None else None


def _usage(usage: _Usage | None) -> Usage | None:
    return None if usage is None else Usage(_sane(usage.prompt_tokens), _sane(usage.completion_tokens))


def _engine_error(body: bytes, error: bytes) -> EngineError:
    """Take the status from the error's code or its word; an error without either is a bad gateway."""
    try:
        said = _error_code.decode(error)
    except msgspec.DecodeError:
        return EngineError(502, body)
    if isinstance(said.code, int):
        status = said.code if 400 <= said.code <= 599 else 502
    else:
        status = _STATUS_OF_WORD.get(said.code or "") or _STATUS_OF_WORD.get(said.type or "", 502)
    return EngineError(status, body)


class OpenAI:
    """Chat completions and completions; the singleton `OPENAI` is the dialect."""

    name = "openai"
    readers: Mapping[bytes, Callable[[bytes], RequestFacts]] = {
        b"/v1/chat/completions": _read_chat,
        b"/v1/completions": _read_completion,
    }
    unfinished = b'"finish_reason":null'

    def read_event(self, event: bytes) -> StreamEvent:
        """Read one whole event; what cannot be read counts as content."""
        data = payload(event)
        if not data:
            return StreamEvent(silent=True)
        if data == b"[DONE]":
            return StreamEvent(done=True)
        try:
            chunk = _chunk.decode(data)
        except (msgspec.DecodeError, RecursionError):
            return StreamEvent(content=True)
        if bytes(chunk.error) not in _NOTHING:
            return StreamEvent(error=_engine_error(data, bytes(chunk.error)))
        choices = chunk.choices or ()
        finish = next((choice.finish_reason for choice in choices if choice.finish_reason), None)
        usage = _usage(chunk.usage)
        content = finish is not None or any(map(_is_content, choices))
        return StreamEvent(
            content=content, finish=finish, usage=usage, usage_only=bool(usage) and not choices
        )

    def read_usage(self, answer: bytes) -> Usage | None:
        """Find the last usage object; inside a JSON string its quotes would be escaped, so text cannot fake it."""
        end = len(answer)
        while (start := answer.rfind(b'"usage"', 0, end)) >= 0:
            if plain := _PLAIN_USAGE.match(answer, start):
                return Usage(int(plain[1]), int(plain[2]))
            if _USAGE.match(answer, start):
                return Usage(_count(_PROMPT_TOKENS, answer, start), _count(_OUTPUT_TOKENS, answer, start))
            end = start
        return None

    def is_aborted(self, answer: bytes) -> bool:
        """Whether a choice ended with `abort`: vLLM's word for work that it gave up."""
        return b'"abort"' in answer and _ABORT.search(answer) is not None

    def error(self, kind: str, code: str | None, message: str, field: str | None = None) -> bytes:
        """Dress an error as `{"error": {...}}`."""
        return msgspec.json.encode(
            {"error": {"message": message, "type": kind, "param": field, "code": code}}
        )

    def error_event(self, kind: str, code: str | None, message: str) -> bytes:
        """Dress an error as a data event."""
        return b"data: " + self.error(kind, code, message) + b"\n\n"

    def with_usage(self, body: bytes) -> bytes:
        """Put `stream_options` first; the caller knows that the body is an object without that key."""
        return _OPENING_BRACE.sub(b'{"stream_options":{"include_usage":true},', body, count=1)


OPENAI = OpenAI()

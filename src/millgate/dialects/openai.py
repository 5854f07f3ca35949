"""The OpenAI dialect: chat completions and completions, as vLLM, SGLang, llama.cpp, TGI and OpenAI speak them.

Requests are decoded into structs that skip what they do not know: a 2 MB body costs 0.6 ms and unknown fields
pass untouched. Errors name the field and the limit and never repeat the body.
"""

import re
from collections.abc import Mapping
from typing import ClassVar, Final

import msgspec
from msgspec import Raw

from millgate.dialects.arrays import FILLED
from millgate.dialects.bodies import (
    ABSENT,
    LIMITS,
    MOST_MESSAGES,
    MOST_PROMPTS,
    bound_of,
    check_fields,
    check_request,
    check_utf8,
    count_conversations,
    count_texts,
    decode,
    is_given,
    most_of,
    named_model,
    parse,
)
from millgate.dialects.contract import (
    UNREADABLE,
    BadInputError,
    Dialect,
    EngineError,
    Family,
    FormReader,
    Reader,
    RequestFacts,
    StreamEvent,
    Usage,
    in_one_line,
)
from millgate.dialects.conversations import read_chat, read_completion
from millgate.dialects.duplicates import COMMON, FIELDS, FieldGuard
from millgate.dialects.frames import Frames
from millgate.dialects.media import (
    EMBEDDED_TOKEN_BYTES,
    UNMEASURED,
    measured,
    measured_prompt,
    measured_texts,
    priced,
)
from millgate.dialects.openai_bodies import (
    ANSWER_END,
    BATCH,
    CHAT,
    CHUNK,
    COMPLETION,
    ERROR_CODE,
    Chat,
    Completion,
    CompletionChoice,
    CompletionCounts,
    CompletionRequest,
)
from millgate.dialects.prefix_chain import ConversationReader
from millgate.dialects.refusals import Refuser
from millgate.dialects.sse import payload
from millgate.dialects.token_counts import cached, count, find_cached, sane

_COMPLETION_GUARD: Final = FieldGuard((*FIELDS, "best_of", "prompt", "prompt_embeds"))
_BATCH_GUARD: Final = FieldGuard((*FIELDS, "messages"))
_FRAMES: Final = Frames(MOST_MESSAGES)
_NOTHING: Final = frozenset((b"", b"null", b'""', b"[]", b"{}"))
_USAGE: Final = re.compile(rb'"usage"\s*:\s*\{')
_PROMPT_TOKENS: Final = re.compile(rb'"prompt_tokens"\s*:\s*(\d{1,8})[,}\s]')
_OUTPUT_TOKENS: Final = re.compile(rb'"completion_tokens"\s*:\s*(\d{1,8})[,}\s]')
# The constructor of a named tuple is an interpreted function: `core/fast_records.py`.
_new: Final = tuple.__new__
_read_end: Final = ANSWER_END.decode
_USAGE_OPENING: Final = b'"usage":{'
_OPENING_BRACE: Final = 0x7B
"""As a number, the search for it takes a fifth of one for bytes, which goes through an exception."""
_MOST_PLAIN_BYTES: Final = 1_024
"""From a plain usage to the end of its answer; cut out of the end of a long answer again and again, it took quadratic time."""
_LARGE_BYTES: Final = 65_536
_MOST_OBJECTS: Final = 65_536
"""An event of more objects is not read: the longest with logprobs have some thousand, and 300,000 choices take 0.1 s."""
_GAVE_UP: Final = re.compile(rb'"finish_reason"\s*:\s*"(?:abort|error)"')
"""vLLM's and SGLang's word for work that they gave up, and OpenRouter's and LMDeploy's."""
_STATUS_BESIDE: Final = {
    b'"overloaded"': 429,
    **dict.fromkeys(
        (b'"validation"', b'"template_error"', b'"missing_template_variable"', b'"tool_error"'), 422
    ),
}
"""The status that TGI gives an error of this `error_type`, which it writes beside the error, where it is no event."""
_STATUS: Final = re.compile(r"[45][0-9][0-9]")
"""LiteLLM's proxy writes the code of an error as text."""
_ERROR_FIELD: Final = b"error:"
"""The field in which llama.cpp had an error of a stream until September 2025 (ggml-org/llama.cpp#16109). SDKs read `data` alone."""
_ASKING_USAGE: Final = b'{"stream_options":{"include_usage":true},'
# Words that engines and OpenAI use where the code is not a number.
_STATUS_OF_WORD: Final = {
    "rate_limit_exceeded": 429,
    "slow_down": 429,
    "server_is_overloaded": 503,
    "overloaded": 503,
    "insufficient_quota": 429,
    "invalid_api_key": 401,
    "authentication_error": 401,
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
}
_OF_THE_REQUEST: Final = re.compile(r"invalid_|.*image")
"""How all other codes begin that OpenAI's `ResponseError` has for a prompt or an image that cannot be read."""


def _read_chat(body: bytes) -> RequestFacts:
    found = _FRAMES.find(body)
    if found is None:
        return _read_anew(body)
    if not body.isascii():
        check_utf8(body)
    return measured_texts(found[0], body, found[1])


def _read_anew(body: bytes) -> RequestFacts:
    request = parse(CHAT, body)
    is_short = _is_short(request)
    if is_short:
        reserved = check_fields(body, [request.messages], COMMON)
    else:
        reserved = check_request(request, body, COMMON)
    limit = request.max_completion_tokens
    max_tokens = bound_of(limit if limit is not None else request.max_tokens, request.n_predict)
    facts = RequestFacts(
        named_model(request.model),
        request.stream is True,
        max_tokens,
        most_of(request.n, request.n_cmpl),
        _asked_usage(request),
        _min_tokens(request, max_tokens),
        reserved=reserved,
    )
    if is_short:
        _FRAMES.keep(body, request.messages, facts[:UNMEASURED])
        if (found := _FRAMES.find(body)) is not None:
            return measured_texts(found[0], body, found[1])
    return measured(facts, body, bytes(request.tools))


def _is_short(request: Chat) -> bool:
    """Whether there is nothing in it that could be beyond its bound: the usual request, for a fifth of the price."""
    messages = request.messages
    return (
        request.tools is ABSENT
        and request.stop is ABSENT
        and request.logit_bias is ABSENT
        and len(messages) <= MOST_MESSAGES
        and FILLED.match(messages) is not None
    )


def _read_batch(body: bytes) -> RequestFacts:
    """Read several conversations that one answer is for, the whole of it at once."""
    request, reserved = decode(BATCH, body, _BATCH_GUARD)
    if request.stream:
        raise BadInputError("stream: a batch of conversations is answered whole; allowed: false", "stream")
    limit = request.max_completion_tokens
    max_tokens = bound_of(limit if limit is not None else request.max_tokens, request.n_predict)
    facts = RequestFacts(
        named_model(request.model),
        stream=False,
        max_tokens=max_tokens,
        answers=most_of(request.n, request.n_cmpl) * count_conversations(request.conversations),
        include_usage=True,
        min_tokens=_min_tokens(request, max_tokens),
        reserved=reserved,
    )
    return measured(facts, body, bytes(request.tools))


def _read_completion(body: bytes) -> RequestFacts:
    request, reserved = decode(COMPLETION, body, _COMPLETION_GUARD)
    if request.max_tokens == 0 and not request.echo:
        raise BadInputError(f"max_tokens: 0 without echo; allowed: {LIMITS['max_tokens']}", "max_tokens")
    max_tokens = bound_of(request.max_tokens, request.n_predict)
    facts = RequestFacts(
        named_model(request.model),
        request.stream is True,
        max_tokens,
        most_of(request.n, request.n_cmpl, request.best_of) * _count_prompts(request),
        _asked_usage(request),
        _min_tokens(request, max_tokens),
        reserved=reserved,
    )
    facts = measured_prompt(facts, body, bytes(request.prompt))
    embeds = bytes(request.prompt_embeds)
    given = is_given(request.prompt_embeds)
    return priced(facts, body, embeds, len(embeds) // EMBEDDED_TOKEN_BYTES) if given else facts


def _count_prompts(request: Completion) -> int:
    """Count the prompts; vLLM runs those that come as embeddings beside the others."""
    prompts = count_texts(bytes(request.prompt), "prompt", MOST_PROMPTS)
    if not is_given(request.prompt_embeds):
        return prompts
    embeds = count_texts(bytes(request.prompt_embeds), "prompt_embeds", MOST_PROMPTS)
    return embeds + prompts if is_given(request.prompt) else embeds


def _asked_usage(request: CompletionRequest) -> bool | None:
    options = request.stream_options
    return None if options is None else options.include_usage is True


def _min_tokens(request: CompletionRequest, max_tokens: int | None) -> int:
    """Return what the engine will write at least: vLLM's `min_tokens`, or all of it with `ignore_eos`."""
    least = request.min_tokens or 0
    if request.ignore_eos and max_tokens is not None:
        return max_tokens
    return least if max_tokens is None else min(least, max_tokens)


def _says(part: Raw) -> bool:
    """Whether there is something in a part of a delta, or in an error."""
    return part is not ABSENT and bytes(part) not in _NOTHING


def _is_content(choice: CompletionChoice) -> bool:
    delta = choice.delta
    return _says(choice.text) or (
        delta is not None
        and (
            _says(delta.content)
            or _says(delta.reasoning_content)
            or _says(delta.reasoning)
            or _says(delta.tool_calls)
            or _says(delta.function_call)
            or _says(delta.refusal)
            or _says(delta.audio)
        )
    )


def _usage(usage: CompletionCounts | None) -> Usage | None:
    if usage is None:
        return None
    prompt_tokens, output_tokens = sane(usage.prompt_tokens), sane(usage.completion_tokens)
    return _new(Usage, (prompt_tokens, output_tokens, cached(usage.prompt_tokens_details)))


def _plain_usage(answer: bytes, start: int) -> Usage | None:
    """Return the usage that begins there as most engines write it: a field of the answer, near its end and without cached tokens; None for any other."""
    said = answer[start:] if len(answer) - start <= _MOST_PLAIN_BYTES else b""
    if not said.startswith(_USAGE_OPENING):
        return None
    if _OPENING_BRACE in said[len(_USAGE_OPENING) :] and said.find(b'"cached_tokens"') >= 0:
        return None
    try:
        usage = _read_end(b"{" + said).usage  # from one of its fields on an object is an object again
    except UNREADABLE:
        return None
    return _usage(usage) if usage.cached_tokens is ABSENT else None


def status_of_error(error: bytes) -> int:
    """Take the status from an error object's code or its word; an error without either is a bad gateway."""
    try:
        said = ERROR_CODE.decode(error)
    except UNREADABLE:
        return 502
    if isinstance(said.code, int):
        return said.code if 400 <= said.code <= 599 else 502
    if said.code is not None and _STATUS.fullmatch(said.code):
        return int(said.code)
    code = said.code or ""
    if code not in _STATUS_OF_WORD and _OF_THE_REQUEST.match(code):
        return 400
    return _STATUS_OF_WORD.get(code) or _STATUS_OF_WORD.get(said.type or "", 502)


class OpenAI(Dialect):
    """Chat completions and completions; the singleton `OPENAI` is the dialect, and OpenAI's other surfaces build on it."""

    name: ClassVar[str] = "openai"
    family: ClassVar[Family] = "openai"
    refuser: ClassVar[Refuser] = Refuser("openai")
    readers: ClassVar[Mapping[bytes, Reader]] = {
        b"/v1/chat/completions": _read_chat,
        b"/v1/chat/completions/batch": _read_batch,
        b"/v1/completions": _read_completion,
    }
    forms: ClassVar[Mapping[bytes, FormReader]] = {}
    conversations: ClassVar[Mapping[bytes, ConversationReader]] = {
        b"/v1/chat/completions": read_chat,
        b"/v1/completions": read_completion,
    }
    light: ClassVar[frozenset[bytes]] = frozenset((b"/tokenize", b"/detokenize"))
    unfinished: ClassVar[bytes] = b'"finish_reason":null'
    keep_alive: ClassVar[bytes] = b": waiting\n\n"
    answer_kinds: ClassVar[tuple[bytes, ...]] = (b"json",)

    def read_event(self, event: bytes) -> StreamEvent:
        """Read one whole event; what cannot be read counts as content."""
        data = payload(event)
        if not data and event.startswith(_ERROR_FIELD):
            data = b'{"error":%b}' % event[len(_ERROR_FIELD) :].strip()
        if not data or data == b"null":  # as llama.cpp writes when it begins to read one of several prompts
            return StreamEvent(silent=True)
        if data == b"[DONE]":
            return StreamEvent(done=True)
        if len(data) > _LARGE_BYTES and data.count(b"{") > _MOST_OBJECTS:
            return StreamEvent(content=True)
        try:
            chunk = CHUNK.decode(data)
        except UNREADABLE:
            return StreamEvent(content=True)
        if _says(chunk.error):
            beside = _STATUS_BESIDE.get(bytes(chunk.error_type))
            return StreamEvent(error=EngineError(beside or status_of_error(bytes(chunk.error)), data))
        choices = chunk.choices or ()
        finish = next((choice.finish_reason for choice in choices if choice.finish_reason), None)
        if finish == "error":
            finish = "abort"
        usage = _usage(chunk.usage)
        content = finish is not None or any(map(_is_content, choices))
        return StreamEvent(
            content=content, finish=finish, usage=usage, usage_only=bool(usage) and not choices
        )

    def read_usage(self, answer: bytes) -> Usage | None:
        """Find the last usage object; inside a JSON string its quotes would be escaped, so text cannot fake it."""
        end = len(answer)
        while (start := answer.rfind(b'"usage"', 0, end)) >= 0:
            if (plain := _plain_usage(answer, start)) is not None:
                return plain
            if _USAGE.match(answer, start):
                prompt_tokens = count(_PROMPT_TOKENS, answer, start)
                output_tokens = count(_OUTPUT_TOKENS, answer, start)
                return Usage(prompt_tokens, output_tokens, find_cached(answer, start))
            end = start
        return None

    def is_aborted(self, answer: bytes) -> bool:
        """Whether a choice ended with `abort` or `error`: it was given up."""
        is_possible = answer.find(b'"abort"') >= 0 or answer.find(b'"error"') >= 0
        return is_possible and _GAVE_UP.search(answer) is not None

    def error(self, kind: str, code: str | None, message: str, field: str | None = None) -> bytes:
        """Dress an error as `{"error": {...}}`."""
        return msgspec.json.encode(
            {"error": {"message": message, "type": kind, "param": field, "code": code}}
        )

    def complaint(
        self, status: int, code: str, message: str, field: str | None = None, request_id: bytes = b""
    ) -> bytes:
        """Dress what is wrong with a request; the request's id goes into the headers alone."""
        del request_id
        kind = "invalid_request_error" if status < 500 else "server_error"
        return self.error(kind, code, message, field)

    def as_event(self, body: bytes) -> bytes:
        """Put an error body into a data event; the SDK raises for any event with an `error` in it."""
        return b"data: " + in_one_line(body) + b"\n\n"

    def with_usage(self, body: bytes) -> bytes:
        """Put `stream_options` first; the caller knows that the body is an object without that key."""
        rest = memoryview(body)[body.find(b"{") + 1 :]
        return b"".join((_ASKING_USAGE, rest))  # one copy of what may be 32 MB


OPENAI = OpenAI()


PAGE_PATHS: Final = (b"/ping", b"/version", b"/metrics")


class Pages(OpenAI):
    """Pages of an engine about itself, asked for with GET: whatever they hold is passed on. The singleton `PAGES` is the dialect."""

    name: ClassVar[str] = "pages"
    readers: ClassVar[Mapping[bytes, Reader]] = {}
    conversations: ClassVar[Mapping[bytes, ConversationReader]] = {}
    light: ClassVar[frozenset[bytes]] = frozenset()
    answer_kinds: ClassVar[tuple[bytes, ...]] = (b"",)


PAGES = Pages()

"""The Anthropic dialect: messages and their token counts, as Anthropic, vLLM and llama.cpp speak it.

A stream consists of named events from `message_start` to `message_stop`; usage comes in two parts, and counts
are cumulative (platform.claude.com, "Streaming messages").
"""

import re
from collections.abc import Mapping
from typing import ClassVar, Final

import msgspec

from millgate.dialects.anthropic_bodies import (
    ANSWER,
    ERROR,
    EVENT,
    REQUEST,
    MessagesCounts,
    MessagesError,
    MessagesEvent,
    Piece,
)
from millgate.dialects.bodies import ABSENT, decode, named_model
from millgate.dialects.contract import (
    UNREADABLE,
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
from millgate.dialects.conversations import read_messages
from millgate.dialects.media import measured
from millgate.dialects.openai import status_of_error
from millgate.dialects.prefix_chain import ConversationReader
from millgate.dialects.refusals import Refuser
from millgate.dialects.sse import payload
from millgate.dialects.token_counts import count, sane, total

STATUS_OF_TYPE: Final[Mapping[str, int]] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""Anthropic's error types and the statuses that they come with (platform.claude.com, "Errors")."""

_TYPE_OF_STATUS: Final = {status: kind for kind, status in STATUS_OF_TYPE.items()} | {
    408: "timeout_error",
    503: "overloaded_error",
}
_USAGE: Final = re.compile(rb'"usage"\s*:\s*\{')
_INPUT: Final = re.compile(rb'"input_tokens"\s*:\s*(\d{1,8})[,}\s]')
_OUTPUT: Final = re.compile(rb'"output_tokens"\s*:\s*(\d{1,8})[,}\s]')
_WRITTEN: Final = re.compile(rb'"cache_creation_input_tokens"\s*:\s*(\d{1,8})[,}\s]')
_READ: Final = re.compile(rb'"cache_read_input_tokens"\s*:\s*(\d{1,8})[,}\s]')
_ABORT: Final = re.compile(rb'"stop_reason"\s*:\s*"abort"')
_PING: Final = (b"event: ping", b"event:ping")


def _read_messages(body: bytes) -> RequestFacts:
    request, reserved = decode(REQUEST, body)
    model, stream = named_model(request.model), request.stream is True
    facts = RequestFacts(model, stream, request.max_tokens, 1, include_usage=True, reserved=reserved)
    return measured(facts, body, bytes(request.tools))


def _usage(usage: MessagesCounts | None) -> Usage | None:
    """Count the whole prompt: what came from the cache and what went into it are beside `input_tokens`."""
    if usage is None:
        return None
    written, read = sane(usage.cache_creation_input_tokens), sane(usage.cache_read_input_tokens)
    return Usage(total(sane(usage.input_tokens), written, read), sane(usage.output_tokens), read)


def _usage_from(answer: bytes, start: int) -> Usage:
    """Count the same in text that cannot be parsed, from where the usage begins."""
    written, read = count(_WRITTEN, answer, start), count(_READ, answer, start)
    return Usage(total(count(_INPUT, answer, start), written, read), count(_OUTPUT, answer, start), read)


def _piece(piece: Piece | None) -> bool:
    """Whether this piece of a block is more than its frame; a tool's name is the model's own word."""
    if piece is None:
        return False
    return bool(piece.text or piece.thinking or piece.partial_json or "tool_use" in piece.type)


class Anthropic(Dialect):
    """Messages; the singleton `ANTHROPIC` is the dialect."""

    name: ClassVar[str] = "anthropic"
    family: ClassVar[Family] = "anthropic"
    refuser: ClassVar[Refuser] = Refuser("anthropic")
    readers: ClassVar[Mapping[bytes, Reader]] = {b"/v1/messages": _read_messages}
    forms: ClassVar[Mapping[bytes, FormReader]] = {}
    conversations: ClassVar[Mapping[bytes, ConversationReader]] = {b"/v1/messages": read_messages}
    light: ClassVar[frozenset[bytes]] = frozenset((b"/v1/messages/count_tokens",))
    # A line end inside JSON is written \n: the raw one stands behind the event's name alone.
    unfinished: ClassVar[bytes] = b"event: content_block_delta\n"
    keep_alive: ClassVar[bytes] = b'event: ping\ndata: {"type": "ping"}\n\n'
    answer_kinds: ClassVar[tuple[bytes, ...]] = (b"json",)

    def read_event(self, event: bytes) -> StreamEvent:
        """Read one whole event; only `message_stop` ends a stream."""
        data = payload(event)
        if not data or event.startswith(_PING):
            return StreamEvent(silent=True)
        try:
            said = EVENT.decode(data)
        except UNREADABLE:
            return StreamEvent(content=True)
        return self._read(said, data)

    def _read(self, said: MessagesEvent, data: bytes) -> StreamEvent:
        match said.type:
            case "content_block_delta":
                return StreamEvent(content=_piece(said.delta))
            case "content_block_start":
                return StreamEvent(content=_piece(said.content_block))
            case "message_start":
                begun = _usage(said.message.usage if said.message is not None else None)
                # Its output tokens are a placeholder.
                usage = None if begun is None else begun._replace(output_tokens=None)
                return StreamEvent(opening=True, usage=usage)
            case "message_delta":
                aborted = said.delta is not None and said.delta.stop_reason == "abort"
                return StreamEvent(usage=_usage(said.usage), finish="abort" if aborted else None)
            case "message_stop":
                return StreamEvent(done=True)
            case "ping":
                return StreamEvent(silent=True)
        if said.error is not ABSENT and bytes(said.error) != b"null":
            return StreamEvent(error=self._engine_error(said, data))
        return StreamEvent()

    def _engine_error(self, said: MessagesEvent, data: bytes) -> EngineError:
        """Take the status from the error's type; put an error of another shape into this one."""
        try:
            error = ERROR.decode(bytes(said.error))
        except UNREADABLE:
            error = MessagesError()
        status = STATUS_OF_TYPE.get(error.type or "") or status_of_error(bytes(said.error))
        if said.type == "error":
            return EngineError(status, data)
        kind = _TYPE_OF_STATUS.get(status, "api_error")
        return EngineError(status, self.error(kind, None, error.message or "the engine failed"))

    def read_usage(self, answer: bytes) -> Usage | None:
        """Find the usage: by its place in a whole answer, else the last one in the text.

        A tool call's input is JSON of its own and may have a `usage` too, so a whole answer is parsed.
        """
        try:
            return _usage(ANSWER.decode(answer).usage)
        except UNREADABLE:
            pass
        start = max((found.start() for found in _USAGE.finditer(answer)), default=-1)
        return None if start < 0 else _usage_from(answer, start)

    def is_aborted(self, answer: bytes) -> bool:
        """Whether the answer stopped for `abort`: vLLM's word for work that it gave up."""
        return answer.find(b'"abort"') >= 0 and _ABORT.search(answer) is not None

    def error(self, kind: str, code: str | None, message: str, field: str | None = None) -> bytes:
        """Dress an error as `{"type": "error", ...}`; there is no room for a code or a field but in the message."""
        del code, field
        return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})

    def complaint(
        self, status: int, code: str, message: str, field: str | None = None, request_id: bytes = b""
    ) -> bytes:
        """Dress what is wrong with a request, with its id."""
        del code, field
        kind = _TYPE_OF_STATUS.get(status, "invalid_request_error" if status < 500 else "api_error")
        error = {"type": kind, "message": message}
        return msgspec.json.encode(
            {"type": "error", "error": error, "request_id": request_id.decode("ascii")}
        )

    def as_event(self, body: bytes) -> bytes:
        """Put an error body into an event of that name; the SDK raises for it."""
        return b"event: error\ndata: " + in_one_line(body) + b"\n\n"


ANTHROPIC = Anthropic()

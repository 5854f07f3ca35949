"""OpenAI's dialect for responses: named events without `[DONE]`, and answers that the engine keeps.

A stream begins with `response.created`, which is no token, and ends with `response.completed`, `.incomplete` or
`.failed` (platform.openai.com, "Streaming events"). A response is stored unless the request says `store: false`:
sending it twice could compute and keep it twice. `background: true` is refused: the engine answers `queued` at once.
"""

import re
from collections.abc import Mapping
from typing import ClassVar, Final

import msgspec

from millgate.dialects.bodies import bound_of, decode, most_of, named_model
from millgate.dialects.contract import (
    UNREADABLE,
    BadInputError,
    EngineError,
    Reader,
    RequestFacts,
    StreamEvent,
    Usage,
)
from millgate.dialects.conversations import read_responses
from millgate.dialects.duplicates import FIELDS, FieldGuard
from millgate.dialects.media import measured
from millgate.dialects.openai import OpenAI, status_of_error
from millgate.dialects.prefix_chain import ConversationReader
from millgate.dialects.responses_bodies import (
    ANSWER,
    ERROR,
    EVENT,
    MOST_ID_CHARS,
    REQUEST,
    Conversation,
    ResponsesError,
    ResponsesEvent,
    StoredResponse,
)
from millgate.dialects.sse import payload
from millgate.dialects.token_counts import cached, count, find_cached, sane

INPUT_TOKENS: Final = b"/v1/responses/input_tokens"
"""The path that counts what a request for a response would read."""
_GUARD: Final = FieldGuard(
    (*FIELDS, "max_output_tokens", "store", "background", "previous_response_id", "conversation")
)
_NO_BACKGROUND: Final = (
    "background: the gate cannot hold its cap over work that goes on after its answer; allowed: false"
)
_UNDER_WAY: Final = ("queued", "in_progress")
_NOTHING: Final = (b"", b"null")
_OPENINGS: Final = ("response.created", "response.queued", "response.in_progress")
_ENDINGS: Final = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
_USAGE: Final = re.compile(rb'"usage"\s*:\s*\{')
_INPUT: Final = re.compile(rb'"input_tokens"\s*:\s*(\d{1,8})[,}\s]')
_OUTPUT: Final = re.compile(rb'"output_tokens"\s*:\s*(\d{1,8})[,}\s]')
_ID: Final = re.compile(rb'"id"\s*:\s*"(resp[A-Za-z0-9_-]{1,124})"')
_PLAIN_ID: Final = re.compile(r"[A-Za-z0-9_-]+\Z")
_ID_WITHIN_BYTES: Final = 4096
_CONVERSATION: Final = "conversation "


def _read_response(body: bytes) -> RequestFacts:
    request, reserved = decode(REQUEST, body, _GUARD)
    if request.background:
        raise BadInputError(_NO_BACKGROUND, "background")
    if request.previous_response_id and request.conversation is not None:
        raise BadInputError("conversation: it cannot stand beside previous_response_id", "conversation")
    facts = RequestFacts(
        named_model(request.model),
        request.stream is True,
        bound_of(request.max_output_tokens, request.n_predict),
        answers=most_of(request.n, request.n_cmpl),
        include_usage=True,
        may_retry=request.store is False,
        previous_id=request.previous_response_id or _id_of(request.conversation),
        reserved=reserved,
    )
    return measured(facts, body, bytes(request.tools))


def _id_of(conversation: str | Conversation | None) -> str:
    """Return by what name the gate looks for the conversation that a request goes on with, empty for none.

    It is the name of no answer: conversations are made elsewhere, and the id of a tenant's own answer opens none.
    """
    given = conversation if conversation is None or isinstance(conversation, str) else conversation.id
    return f"{_CONVERSATION}{given}" if given else ""


def _usage(response: StoredResponse | None) -> Usage | None:
    usage = response.usage if response is not None else None
    if usage is None:
        return None
    return Usage(sane(usage.input_tokens), sane(usage.output_tokens), cached(usage.input_tokens_details))


def goes_on_from(body: bytes) -> str:
    """Return the name of the answer or conversation that a request goes on from, empty for none; BadInputError as its reader's."""
    return _read_response(body).previous_id


class Responses(OpenAI):
    """Responses; the singleton `RESPONSES` is the dialect."""

    name: ClassVar[str] = "openai-responses"
    readers: ClassVar[Mapping[bytes, Reader]] = {b"/v1/responses": _read_response}
    conversations: ClassVar[Mapping[bytes, ConversationReader]] = {b"/v1/responses": read_responses}
    light: ClassVar[frozenset[bytes]] = frozenset((INPUT_TOKENS,))
    # A line end inside JSON is written \n: the raw one stands behind the event's name alone.
    unfinished: ClassVar[bytes] = b".delta\ndata: "

    def read_event(self, event: bytes) -> StreamEvent:
        """Read one whole event; a `[DONE]` that some engines add says nothing here."""
        data = payload(event)
        if not data or data == b"[DONE]":
            return StreamEvent(silent=True)
        try:
            said = EVENT.decode(data)
        except UNREADABLE:
            return StreamEvent(content=True)
        if said.type.endswith(".delta"):
            return StreamEvent(content=True)
        if said.type in _OPENINGS:
            return StreamEvent(opening=True, answer_id=_kept_id(said.response))
        if said.type in _ENDINGS:
            return self._ending(said)
        if said.type == "error" or bytes(said.error) not in _NOTHING:
            return StreamEvent(error=self._failure(bytes(said.error), data, final=False))
        return StreamEvent()

    def _ending(self, said: ResponsesEvent) -> StreamEvent:
        usage = _usage(said.response)
        if said.type != "response.failed":
            return StreamEvent(done=True, usage=usage)
        error = bytes(said.response.error) if said.response is not None else b""
        return StreamEvent(done=True, usage=usage, error=self._failure(error, b"", final=True))

    def _failure(self, nested: bytes, flat: bytes, *, final: bool) -> EngineError:
        """Read an error object, or the event itself where the error's fields are its own."""
        source = nested if nested not in _NOTHING else flat
        try:
            error = ERROR.decode(source)
        except UNREADABLE:
            error = ResponsesError()
        body = self.error(
            "server_error", str(error.code or "upstream_error"), error.message or "the engine failed"
        )
        return EngineError(status_of_error(source), body, final)

    def read_usage(self, answer: bytes) -> Usage | None:
        """Find the usage: by its place in a whole answer, else the last one in the text."""
        try:
            return _usage(ANSWER.decode(answer))
        except UNREADABLE:
            pass
        start = max((found.start() for found in _USAGE.finditer(answer)), default=-1)
        if start < 0:
            return None
        input_tokens, output_tokens = count(_INPUT, answer, start), count(_OUTPUT, answer, start)
        return Usage(input_tokens, output_tokens, find_cached(answer, start))

    def read_id(self, answer: bytes) -> str | None:
        """Find the id of a response, which engines write first."""
        found = _ID.search(answer, 0, _ID_WITHIN_BYTES)
        return None if found is None else found[1].decode()

    def is_aborted(self, answer: bytes) -> bool:
        """Whether a whole response says that the engine still works on it, which would be outside the cap."""
        if not any(answer.find(status.encode()) >= 0 for status in _UNDER_WAY):
            return False
        try:
            return ANSWER.decode(answer).status in _UNDER_WAY
        except UNREADABLE:
            return False

    def as_event(self, body: bytes) -> bytes:
        """Put an error body into an `error` event: its fields once as documented, once where the SDK looks."""
        said = msgspec.json.decode(body)["error"]
        error = said if isinstance(said, dict) else {"message": str(said)}
        event = {
            "type": "error",
            "code": error.get("code"),
            "message": error.get("message"),
            "param": error.get("param"),
            "sequence_number": 0,
            "error": error,
        }
        return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"


def _kept_id(response: StoredResponse | None) -> str | None:
    answer_id = response.id if response is not None else None
    plain = answer_id is not None and len(answer_id) <= MOST_ID_CHARS and _PLAIN_ID.match(answer_id)
    return answer_id if plain else None


RESPONSES = Responses()

"""What every dialect offers the doors: one request read, one answer watched, one error dressed."""

from collections.abc import Callable, Mapping
from typing import ClassVar, Final, Literal, NamedTuple

import msgspec

from millgate.core.events import PrefixMarks, PromptShape
from millgate.dialects.prefix_chain import ConversationReader
from millgate.dialects.refusals import Refuser

MOST_TOKENS: Final = 10_000_000
"""Above every context window sold; a larger number is a mistake or an attack on the meters."""

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding an engine's JSON may raise: it is malformed, its text is no UTF-8, or it is nested too deeply."""

Family = Literal["openai", "anthropic"]
"""Whose column of the table of refusals a dialect speaks."""


class RequestFacts(NamedTuple):
    """What the gate must know of a request body; everything else passes untouched.

    `max_tokens` bounds one answer (0: there is none, as of embeddings), `min_tokens` is what the engine was told to
    write at least; `answers` counts the parallel ones. `include_usage` is what the client asked for in
    `stream_options`, None when it sent no such object; True where usage comes unasked. `fixed_tokens` stand for images,
    audio and other parts that are no text; `text_bytes` is the body without their data, None for the whole body, and
    `shape` of what it is made, None where only its length is known. `may_retry` False forbids a second sending even on
    a dead connection. `previous_id` names a stored answer or conversation that this request goes on from, and that only
    the engine which stored it knows. `marks` of its prefixes come only with a long body, whose reader makes them; those
    of others are made when the core asks. `reserved` is the field by which the request would reach into an engine's
    cache, empty for none.
    """

    model: str
    stream: bool
    max_tokens: int | None
    answers: int
    include_usage: bool | None
    min_tokens: int = 0
    may_retry: bool = True
    previous_id: str = ""
    marks: PrefixMarks | None = None
    reserved: str = ""
    fixed_tokens: int = 0
    text_bytes: int | None = None
    shape: PromptShape | None = None


class Usage(NamedTuple):
    """Token counts as the engine reported them; None for what is missing, negative or absurd.

    `cached_tokens` of the prompt came from the engine's cache. Some engines leave a 0 out (vLLM does), so None is no
    proof that the engine never says.
    """

    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None = None

    def after(self, earlier: "Usage") -> "Usage":
        """Return these counts, completed by what an earlier event of the same stream has said.

        A prompt does not shrink: engines that count it again may leave out what came from their cache.
        """
        prompt, output, cached = self
        return Usage(
            earlier.prompt_tokens if prompt is None else max(prompt, earlier.prompt_tokens or 0),
            earlier.output_tokens if output is None else output,
            earlier.cached_tokens if cached is None else cached,
        )


class EngineError(NamedTuple):
    """An error that an engine wrote into its stream: the status that it meant and its own words.

    `final` says that the event ends the stream by the rules of its dialect, so that nothing has to be cut.
    """

    status: int
    body: bytes
    final: bool = False


class StreamEvent(NamedTuple):
    """One event of a stream as far as the relay cares.

    `silent` is a comment, a blank or a ping; `opening` says that a request was taken, which its engine may still refuse; `content` carries answer text or a tool call; `finish` is a finish
    reason that may stand for the terminal event, `abort` for any that says that the answer was given up; `done` the terminal event; `usage_only` an event that exists for
    its usage alone; `answer_id` names an answer that the engine keeps.
    """

    silent: bool = False
    opening: bool = False
    content: bool = False
    finish: str | None = None
    done: bool = False
    usage: Usage | None = None
    usage_only: bool = False
    error: EngineError | None = None
    answer_id: str | None = None


class BadInputError(ValueError):
    """A request that must not be dispatched; `field` is what the client has to change."""

    def __init__(
        self, message: str, field: str | None = None, *, status: int = 400, code: str = "invalid_request"
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.status = status
        self.code = code


Reader = Callable[[bytes], RequestFacts]
"""Reads a JSON body; raises BadInputError."""

FormReader = Callable[[bytes, bytes], RequestFacts]
"""Reads a multipart body, told its boundary; raises BadInputError."""


class Dialect:
    """One wire language between clients and engines; stateless, shared by all requests. It is no protocol, which compiled code asks half as fast."""

    name: ClassVar[str]
    family: ClassVar[Family]
    refuser: ClassVar[Refuser]
    """Writes the refusals of this dialect's family."""
    readers: ClassVar[Mapping[bytes, Reader]]
    """Request path -> reader of its JSON body."""
    forms: ClassVar[Mapping[bytes, FormReader]]
    """Request path -> reader of its multipart/form-data body."""
    conversations: ClassVar[Mapping[bytes, ConversationReader]]
    """Request path -> reader of its conversation, for the marks of its prefixes; other paths have none."""
    light: ClassVar[frozenset[bytes]]
    """Paths that are posted to and cost an engine next to nothing: no permit, a small cap of their own."""
    unfinished: ClassVar[bytes]
    """Bytes that stand once in every event that neither ends the answer nor reports an error."""
    keep_alive: ClassVar[bytes]
    """An event that this dialect's clients skip."""
    answer_kinds: ClassVar[tuple[bytes, ...]]
    """Parts of the content types that a whole good answer may have."""

    def read_event(self, event: bytes) -> StreamEvent:
        """Read one whole server-sent event; what cannot be read counts as content."""
        raise NotImplementedError

    def read_usage(self, answer: bytes) -> Usage | None:
        """Find the usage in a JSON answer, or in its last bytes."""
        raise NotImplementedError

    def read_id(self, answer: bytes) -> str | None:
        """Find the id of an answer that the engine keeps, in its first bytes; None in dialects without such."""
        del answer
        return None

    def is_aborted(self, answer: bytes) -> bool:
        """Whether a whole JSON answer says that the engine gave up on it."""
        raise NotImplementedError

    def error(self, kind: str, code: str | None, message: str, field: str | None = None) -> bytes:
        """Dress an error as a JSON body."""
        raise NotImplementedError

    def complaint(
        self, status: int, code: str, message: str, field: str | None = None, request_id: bytes = b""
    ) -> bytes:
        """Dress what is wrong with a request as a JSON body, its type taken from the status."""
        raise NotImplementedError

    def as_event(self, body: bytes) -> bytes:
        """Turn a JSON error body of this dialect into an event for a stream that has begun."""
        raise NotImplementedError

    def with_usage(self, body: bytes) -> bytes:
        """Return this streaming request with usage asked for, as it is where usage comes unasked; only for bodies without `stream_options`."""
        return body


def in_one_line(body: bytes) -> bytes:
    """Return this JSON without raw line ends, which can only stand between its tokens: one `data:` field holds it."""
    return body.replace(b"\r", b" ").replace(b"\n", b" ")

"""What every dialect offers the doors: one request read, one answer watched, one error dressed."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

MOST_TOKENS = 10_000_000
"""Above every context window sold; a larger number is a mistake or an attack on the meters."""


class RequestFacts(NamedTuple):
    """What the gate must know of a request body; everything else passes untouched.

    `max_tokens` bounds one answer, `answers` counts the parallel ones. `include_usage` is what the client asked
    for in `stream_options`, None when it sent no such object.
    """

    model: str
    stream: bool
    max_tokens: int | None
    answers: int
    include_usage: bool | None


class Usage(NamedTuple):
    """Token counts as the engine reported them; None for what is missing, negative or absurd."""

    prompt_tokens: int | None
    output_tokens: int | None


class EngineError(NamedTuple):
    """An error that an engine wrote into its stream: the status that it meant and its own words."""

    status: int
    body: bytes


class StreamEvent(NamedTuple):
    """One event of a stream as far as the relay cares.

    `silent` is a comment or a blank; `content` carries answer text or a tool call; `finish` is a finish reason;
    `done` the terminal event; `usage_only` an event that exists for its usage alone.
    """

    silent: bool = False
    content: bool = False
    finish: str | None = None
    done: bool = False
    usage: Usage | None = None
    usage_only: bool = False
    error: EngineError | None = None


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


class Dialect(Protocol):
    """One wire language between clients and engines; stateless, shared by all requests."""

    name: str
    readers: Mapping[bytes, Callable[[bytes], RequestFacts]]
    """Request path -> reader of its body; readers raise BadInputError."""
    unfinished: bytes
    """Bytes that stand once in every event that neither ends the answer nor reports an error."""

    def read_event(self, event: bytes) -> StreamEvent:
        """Read one whole server-sent event; what cannot be read counts as content."""

    def read_usage(self, answer: bytes) -> Usage | None:
        """Find the usage in a JSON answer, or in its last bytes."""

    def is_aborted(self, answer: bytes) -> bool:
        """Whether a whole JSON answer says that the engine gave up on it."""

    def error(self, kind: str, code: str | None, message: str, field: str | None = None) -> bytes:
        """Dress an error as a JSON body."""

    def error_event(self, kind: str, code: str | None, message: str) -> bytes:
        """Dress an error as an event for a stream that has begun."""

    def with_usage(self, body: bytes) -> bytes:
        """Return this streaming request with usage asked for; only for bodies without `stream_options`."""

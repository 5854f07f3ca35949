"""Reading a long body in a process of its own: what is asked of that process, what it answers, and what runs in it.

A parser holds the interpreter for the whole of a body, 0.2 s for 32 MB of brackets, and a thread would hold it as long.
Questions and replies are MessagePack behind a length of four bytes; the body follows its question as it came.
"""

import socket
from typing import Any, Final, NamedTuple

import msgspec

from millgate.dialects import dialect_of
from millgate.dialects.contract import BadInputError, RequestFacts
from millgate.dialects.conversations import prefix_marks

LENGTH_BYTES: Final = 4
_STREAM_OPTIONS: Final = b'"stream_options"'


class Question(NamedTuple):
    """Whose reader is to read a body of `size_bytes`: by the request's path, and `boundary` where the body is a form.

    With a `mark_seed` the prefixes of its conversation are marked too.
    """

    path: bytes
    boundary: bytes
    size_bytes: int
    mark_seed: int | None = None


class Refused(NamedTuple):
    """A `BadInputError` by its parts."""

    message: str
    field: str | None
    status: int
    code: str


class FarReply(NamedTuple):
    """The fields of a body's `RequestFacts`, or why it is refused; with neither, `fault` is the name of what was raised.

    Not the record itself: compiled, its fields have no types that a decoder could read.
    """

    facts: list[Any] | None = None
    refused: Refused | None = None
    fault: str = ""


_questions: Final = msgspec.msgpack.Decoder(Question)
_replies: Final = msgspec.msgpack.Decoder(FarReply)


def frame(record: Question | FarReply) -> bytes:
    """Return a record as it is sent."""
    data = msgspec.msgpack.encode(record)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


def read_reply(data: bytes | bytearray) -> FarReply | None:
    """Return the reply that these bytes begin with, None while it is not whole."""
    end = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "big")
    return _replies.decode(data[LENGTH_BYTES:end]) if LENGTH_BYTES < end <= len(data) else None


def answer(question: Question, body: bytes) -> FarReply:
    """Read one body as the door would; whatever a reader raises is a reply too."""
    try:
        return FarReply(list(_read(question, body)))
    except BadInputError as error:
        return FarReply(refused=Refused(error.message, error.field, error.status, error.code))
    except Exception as error:  # noqa: BLE001 - the process goes on, and the door reports it
        return FarReply(fault=type(error).__name__)


def _read(question: Question, body: bytes) -> RequestFacts:
    """Return the facts; `include_usage` is None only where the body says nothing at all of `stream_options`.

    So the door need not search it again before it adds some.
    """
    dialect = dialect_of(question.path, names_anthropic=False)
    if question.boundary:
        return dialect.forms[question.path](body, question.boundary)
    facts = dialect.readers[question.path](body)
    if facts.include_usage is None and _STREAM_OPTIONS in body:
        facts = facts._replace(include_usage=False)
    conversation = dialect.conversations.get(question.path)
    if question.mark_seed is None or conversation is None:
        return facts
    return facts._replace(marks=prefix_marks(conversation, body, question.mark_seed))


def serve(descriptor: int) -> None:
    """Answer questions on this socket until its other end is closed."""
    with socket.socket(fileno=descriptor) as line, line.makefile("rb") as questions:
        while length := questions.read(LENGTH_BYTES):
            question = _questions.decode(questions.read(int.from_bytes(length, "big")))
            body = questions.read(question.size_bytes)
            if len(body) < question.size_bytes:
                return
            line.sendall(frame(answer(question, body)))
            del body

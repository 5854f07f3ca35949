"""What is read of Anthropic's messages: requests, answers, events and errors.

Structs stay with the interpreter, as the compiler drops the keywords of their classes; what reads them is compiled.
"""

from typing import Final

import msgspec
from msgspec import Raw

from millgate.dialects.bodies import ABSENT, LeastTokens, Messages, Model, Tools


class MessagesRequest(msgspec.Struct, kw_only=True, gc=False):
    """A request for a message; one of no tokens puts its prompt into the cache."""

    model: Model | None = None
    max_tokens: LeastTokens | None = None
    messages: Messages
    system: Raw = ABSENT
    stream: bool | None = None
    stop_sequences: Raw = ABSENT
    tools: Tools = ABSENT


class MessagesCounts(msgspec.Struct, gc=False):
    """Usage as engines write it."""

    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None


class Message(msgspec.Struct, gc=False):
    """An answer, whole or begun."""

    usage: MessagesCounts | None = None


class Piece(msgspec.Struct, gc=False):
    """A piece of a content block, or of what ends the message."""

    type: str = ""
    text: str = ""
    thinking: str = ""
    partial_json: str = ""
    stop_reason: str | None = None


class MessagesError(msgspec.Struct, gc=False):
    """What an engine says of its failure."""

    type: str | None = None
    message: str | None = None


class MessagesEvent(msgspec.Struct, gc=False):
    """One event of a stream."""

    type: str = ""
    message: Message | None = None
    delta: Piece | None = None
    content_block: Piece | None = None
    usage: MessagesCounts | None = None
    error: Raw = ABSENT


REQUEST: Final = msgspec.json.Decoder(MessagesRequest)
EVENT: Final = msgspec.json.Decoder(MessagesEvent)
ANSWER: Final = msgspec.json.Decoder(Message)
ERROR: Final = msgspec.json.Decoder(MessagesError)

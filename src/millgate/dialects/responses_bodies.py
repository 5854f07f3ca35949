"""What is read of OpenAI's responses: requests, answers, events and errors.

Structs stay with the interpreter, as the compiler drops the keywords of their classes; what reads them is compiled.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw

from millgate.dialects.bodies import ABSENT, Answers, Model, Predicted, Tokens, Tools

MOST_ID_CHARS: Final = 128
KeptId = Annotated[str, Meta(max_length=MOST_ID_CHARS)]


class Conversation(msgspec.Struct, gc=False):
    """A stored conversation, named by an object instead of its id alone."""

    id: KeptId


class ResponsesRequest(msgspec.Struct, gc=False):
    """A request for a response; llama.cpp takes the counts of chat completions here too."""

    model: Model | None = None
    stream: bool | None = None
    max_output_tokens: Tokens | None = None
    n: Answers | None = None
    n_cmpl: Answers | None = None
    n_predict: Predicted | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: KeptId | None = None
    conversation: KeptId | Conversation | None = None
    input: Raw = ABSENT
    tools: Tools = ABSENT


class ResponsesCounts(msgspec.Struct, gc=False):
    """Usage as engines write it; the details apart, so that an odd shape of theirs costs no other number."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: Raw = ABSENT


class StoredResponse(msgspec.Struct, gc=False):
    """An answer, whole or under way."""

    id: str | None = None
    status: str | None = None
    usage: ResponsesCounts | None = None
    error: Raw = ABSENT


class ResponsesEvent(msgspec.Struct, gc=False):
    """One event of a stream."""

    type: str = ""
    response: StoredResponse | None = None
    message: str | None = None
    error: Raw = ABSENT


class ResponsesError(msgspec.Struct, gc=False):
    """What an engine says of its failure."""

    code: str | int | None = None
    message: str | None = None


REQUEST: Final = msgspec.json.Decoder(ResponsesRequest)
EVENT: Final = msgspec.json.Decoder(ResponsesEvent)
ANSWER: Final = msgspec.json.Decoder(StoredResponse)
ERROR: Final = msgspec.json.Decoder(ResponsesError)

"""What is read of OpenAI's surfaces but responses: requests, events of an answer, and errors; of pooling and of sound too.

Structs stay with the interpreter, as the compiler drops the keywords of their classes; what reads them is compiled.
"""

import re
from typing import Final

import msgspec
from msgspec import Raw

from millgate.dialects.bodies import ABSENT, Answers, LeastTokens, Messages, Model, Predicted, Tokens, Tools
from millgate.dialects.contract import UNREADABLE


class StreamOptions(msgspec.Struct, gc=False):
    """What a client wants of a stream."""

    include_usage: bool | None = None


class CompletionRequest(msgspec.Struct, gc=False):
    """What both kinds of requests have; llama.cpp reads `n_cmpl` before `n` and `n_predict` before its bounds."""

    model: Model | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Tokens | None = None
    min_tokens: LeastTokens | None = None
    ignore_eos: bool | None = None
    n: Answers | None = None
    n_cmpl: Answers | None = None
    n_predict: Predicted | None = None
    stop: Raw = ABSENT
    logit_bias: Raw = ABSENT


class Chat(CompletionRequest, kw_only=True, gc=False):
    """A request for a chat completion."""

    messages: Messages
    max_completion_tokens: Tokens | None = None
    tools: Tools = ABSENT


class BatchRequest(CompletionRequest, kw_only=True, gc=False):
    """A request for the completions of several conversations, as vLLM takes it: each gets an answer of its own."""

    conversations: Raw = msgspec.field(name="messages")
    max_completion_tokens: Tokens | None = None
    tools: Tools = ABSENT


class Completion(CompletionRequest, kw_only=True, gc=False):
    """A request for a completion; where it echoes its prompt it may write nothing, to have that scored."""

    prompt: Raw = ABSENT
    prompt_embeds: Raw = ABSENT
    best_of: Answers | None = None
    max_tokens: LeastTokens | None = None
    echo: bool | None = None


class Delta(msgspec.Struct, gc=False):
    """Everything in a delta that may be content."""

    content: Raw = ABSENT
    reasoning_content: Raw = ABSENT
    reasoning: Raw = ABSENT
    tool_calls: Raw = ABSENT
    function_call: Raw = ABSENT
    refusal: Raw = ABSENT
    audio: Raw = ABSENT


class CompletionChoice(msgspec.Struct, gc=False):
    """One of the parallel answers in an event."""

    delta: Delta | None = None
    text: Raw = ABSENT
    finish_reason: str | None = None


class CompletionCounts(msgspec.Struct, gc=False):
    """Usage as engines write it; the details apart, so that an odd shape of theirs costs no other number."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: Raw = ABSENT


class FlatCounts(CompletionCounts, gc=False):
    """Usage of an engine that writes its cached tokens beside the others, or none."""

    cached_tokens: Raw = ABSENT


class AnswerEnd(msgspec.Struct, gc=False):
    """The end of an answer, from its usage on."""

    usage: FlatCounts


class CompletionChunk(msgspec.Struct, gc=False):
    """One event of a stream."""

    choices: list[CompletionChoice] | None = None
    usage: CompletionCounts | None = None
    error: Raw = ABSENT
    error_type: Raw = ABSENT


class ErrorCode(msgspec.Struct, gc=False):
    """What of an error says its status."""

    code: int | str | None = None
    type: str | None = None


class PromptDetails(msgspec.Struct, gc=False):
    """What of a prompt's details is counted; responses have the same."""

    cached_tokens: int | None = None


CHAT: Final = msgspec.json.Decoder(Chat)
BATCH: Final = msgspec.json.Decoder(BatchRequest)
COMPLETION: Final = msgspec.json.Decoder(Completion)
CHUNK: Final = msgspec.json.Decoder(CompletionChunk)
ANSWER_END: Final = msgspec.json.Decoder(AnswerEnd)
ERROR_CODE: Final = msgspec.json.Decoder(ErrorCode)
PROMPT_DETAILS: Final = msgspec.json.Decoder(PromptDetails)


class Embedding(msgspec.Struct, gc=False):
    """A request for embeddings, of texts or of conversations; for pooling also of what a plugin of the engine reads.

    llama.cpp takes `content` for a missing input.
    """

    model: Model | None = None
    input: Raw = ABSENT
    content: Raw = ABSENT
    conversations: Raw = msgspec.field(default=ABSENT, name="messages")
    data: Raw = ABSENT


class CohereEmbedding(msgspec.Struct, gc=False):
    """A request for embeddings in Cohere's form: of texts, of images, or of both mixed."""

    model: Model | None = None
    texts: Raw = ABSENT
    images: Raw = ABSENT
    inputs: Raw = ABSENT


class Rerank(msgspec.Struct, kw_only=True, gc=False):
    """A request to order documents; llama.cpp takes `texts`, TEI's name for them, where it cannot read the documents."""

    model: Model | None = None
    query: Raw = ABSENT
    documents: Raw = ABSENT
    texts: Raw = Raw(b"null")


class PoolingScore(msgspec.Struct, gc=False):
    """A request to score texts against each other, under any of the names that engines take for the two sides."""

    model: Model | None = None
    text_1: Raw = ABSENT
    text_2: Raw = ABSENT
    queries: Raw = ABSENT
    documents: Raw = ABSENT
    items: Raw = ABSENT
    data_1: Raw = ABSENT
    data_2: Raw = ABSENT


class Content(msgspec.Struct, gc=False):
    """Texts and images to score, in vLLM's multimodal form."""

    content: Raw


CONTENT: Final = msgspec.json.Decoder(Content)
EMBEDDING: Final = msgspec.json.Decoder(Embedding)
COHERE_EMBEDDING: Final = msgspec.json.Decoder(CohereEmbedding)
RERANK: Final = msgspec.json.Decoder(Rerank)
SCORE: Final = msgspec.json.Decoder(PoolingScore)


class Speech(msgspec.Struct, gc=False):
    """A request for speech."""

    model: Model | None = None
    stream: bool | None = None
    stream_format: str | None = None


class AudioEvent(msgspec.Struct, gc=False):
    """One event of a stream."""

    type: str = ""


SPEECH: Final = msgspec.json.Decoder(Speech)
EVENT: Final = msgspec.json.Decoder(AudioEvent)


class Named(msgspec.Struct, gc=False):
    """Any request for a model."""

    model: str | None = None


_NAMED: Final = msgspec.json.Decoder(Named)
_NAMES: Final = re.compile(rb'"model"\s*:\s*"([^"\\]{1,256})"')
_SHORT_BYTES: Final = 65_536


def model_of(body: bytes) -> str:
    """Return the model that a body names, empty where there is none to be found; of a long one both ends are looked at, in which SDKs write it."""
    try:
        if len(body) <= _SHORT_BYTES:
            return _NAMED.decode(body).model or ""
        found = _NAMES.search(body[:_SHORT_BYTES]) or _NAMES.search(body[-_SHORT_BYTES:])
        return "" if found is None else found[1].decode()
    except UNREADABLE:
        return ""

"""OpenAI's dialect where an engine reads and does not write: embeddings, rerank and score.

Such a request has no output tokens and as many answers as inputs. vLLM and Jina answer to `/v1/rerank`, Cohere's
clients ask `/v2/rerank`, and vLLM offers both without a version too.
"""

from collections.abc import Mapping
from typing import ClassVar, Final

from millgate.dialects.bodies import (
    LIMITS,
    MOST_INPUTS,
    count_entries,
    count_texts,
    decode,
    named_model,
)
from millgate.dialects.contract import BadInputError, Reader, RequestFacts, Usage
from millgate.dialects.duplicates import Guard
from millgate.dialects.media import measure
from millgate.dialects.openai import OpenAI
from millgate.dialects.pooling_bodies import EMBEDDING, RERANK, SCORE

_GUARD: Final = Guard(
    ("model", "input", "messages", "documents", "text_1", "text_2", "queries", "data_1", "data_2")
)
"""Whatever inputs are counted of: an engine that keeps the first of two lists would run the longer one."""


def _read_embedding(body: bytes) -> RequestFacts:
    request = decode(EMBEDDING, body, _GUARD)
    if bytes(request.messages) in {b"", b"null"} and not bytes(request.input):
        raise BadInputError(f"input: the field is required: {LIMITS['input']}", "input")
    return _facts(request.model, count_texts(bytes(request.input), "input", MOST_INPUTS), body)


def _read_rerank(body: bytes) -> RequestFacts:
    request = decode(RERANK, body, _GUARD)
    return _facts(request.model, count_entries(request.documents, "documents", MOST_INPUTS), body)


def _read_score(body: bytes) -> RequestFacts:
    """Count the pairs: one list is scored against one text, or two lists of one length entry by entry."""
    request = decode(SCORE, body, _GUARD)
    sides = (
        request.text_1,
        request.text_2,
        request.queries,
        request.documents,
        request.data_1,
        request.data_2,
    )
    return _facts(request.model, max(count_texts(bytes(side), "input", MOST_INPUTS) for side in sides), body)


def _facts(model: str | None, inputs: int, body: bytes) -> RequestFacts:
    media_tokens, text_bytes = measure(body)
    return RequestFacts(
        named_model(model),
        stream=False,
        max_tokens=0,
        answers=max(1, inputs),
        include_usage=True,
        fixed_tokens=media_tokens,
        text_bytes=text_bytes,
    )


class Pooling(OpenAI):
    """Embeddings, rerank and score; the singleton `POOLING` is the dialect."""

    name: ClassVar[str] = "openai-pooling"
    readers: ClassVar[Mapping[bytes, Reader]] = {
        b"/v1/embeddings": _read_embedding,
        **dict.fromkeys((b"/v1/rerank", b"/v2/rerank", b"/rerank"), _read_rerank),
        **dict.fromkeys((b"/v1/score", b"/score"), _read_score),
    }
    light: ClassVar[frozenset[bytes]] = frozenset()

    def read_usage(self, answer: bytes) -> Usage | None:
        """Find the prompt tokens; there are no others."""
        usage = super().read_usage(answer)
        return Usage(None, 0) if usage is None else usage._replace(output_tokens=0)


POOLING = Pooling()

"""OpenAI's dialect where an engine reads and does not write: embeddings, rerank, score and pooling.

Such a request has no output tokens and as many answers as inputs. Engines (vLLM, Jina) answer to `/v1/rerank`. Cohere's
clients ask `/v2/rerank` and `/v2/embed`, and vLLM offers rerank and score without a version too. `/classify` and
`/pooling` are vLLM's own: they read what embeddings read, `/pooling` also the data of a plugin.
"""

import re
from collections.abc import Mapping
from typing import ClassVar, Final

import msgspec
from msgspec import Raw

from millgate.dialects.bodies import (
    LIMITS,
    MOST_INPUTS,
    SIDES,
    count_conversations,
    count_entries,
    count_texts,
    decode,
    is_given,
    named_model,
)
from millgate.dialects.contract import BadInputError, Reader, RequestFacts, Usage
from millgate.dialects.duplicates import FieldGuard
from millgate.dialects.media import MEDIA_TOKENS, measure, measured_prompt, priced
from millgate.dialects.openai import OpenAI
from millgate.dialects.openai_bodies import (
    COHERE_EMBEDDING,
    CONTENT,
    EMBEDDING,
    RERANK,
    SCORE,
    CohereEmbedding,
    Embedding,
    PoolingScore,
    Rerank,
)
from millgate.dialects.prefix_chain import ConversationReader
from millgate.dialects.token_counts import count

_KINDS: Final = (Embedding, CohereEmbedding, Rerank, PoolingScore)
_GUARD: Final = FieldGuard(
    tuple(sorted({field.encode_name for kind in _KINDS for field in msgspec.structs.fields(kind)}))
)
"""Whatever inputs are counted of: an engine that keeps the first of two lists would run the longer one."""

_BILLED_TOKENS: Final = re.compile(rb'"input_tokens"\s*:\s*(\d{1,8})[,}\s]')


def _read_embedding(body: bytes) -> RequestFacts:
    request, reserved = decode(EMBEDDING, body, _GUARD)
    return _inputs_facts(request, body, reserved)


def _read_pooling(body: bytes) -> RequestFacts:
    """Count what a plugin is given like texts, where it is an array: what it makes of that, only the engine knows."""
    request, reserved = decode(EMBEDDING, body, _GUARD)
    if not is_given(request.data):
        return _inputs_facts(request, body, reserved)
    data = bytes(request.data)
    return _facts(
        request.model, count_texts(data, "input", MOST_INPUTS) if data[:1] == b"[" else 1, body, reserved
    )


def _inputs_facts(request: Embedding, body: bytes, reserved: str) -> RequestFacts:
    prompt = b"" if is_given(request.conversations) else bytes(request.input)
    return _facts(request.model, _count_inputs(request), body, reserved, prompt)


def _count_inputs(request: Embedding) -> int:
    """Count the longest of the lists that are given: engines differ in which one they read."""
    texts = [bytes(each) for each in (request.input, request.content) if len(each) > 0]
    counts = [count_texts(each, "input", MOST_INPUTS) for each in texts]
    if is_given(request.conversations):
        counts.append(count_conversations(request.conversations))
    if not counts:
        raise BadInputError(f"input: the field is required: {LIMITS['input']}", "input")
    return max(counts)


def _read_cohere_embedding(body: bytes) -> RequestFacts:
    """Count the texts, the images and what mixes both; an image is sized as one, and not by its base64."""
    request, reserved = decode(COHERE_EMBEDDING, body, _GUARD)
    sorts = {"texts": request.texts, "images": request.images, "inputs": request.inputs}
    counts = {
        name: count_entries(array, name, MOST_INPUTS) for name, array in sorts.items() if is_given(array)
    }
    if not counts:
        raise BadInputError(f"texts: the field is required: {LIMITS['texts']}", "texts")
    facts = _facts(request.model, sum(counts.values()), body, reserved)
    if "images" not in counts:
        return facts
    return priced(facts, body, bytes(request.images), MEDIA_TOKENS * counts["images"])


def _read_rerank(body: bytes) -> RequestFacts:
    request, reserved = decode(RERANK, body, _GUARD)
    texts = count_entries(request.texts, "texts", MOST_INPUTS) if is_given(request.texts) else 0
    given = request.documents if is_given(request.documents) else request.texts
    documents = count_entries(_parts_of(given), "documents", MOST_INPUTS)
    return _paired(_facts(request.model, max(documents, texts), body, reserved), body, bytes(request.query))


def _read_score(body: bytes) -> RequestFacts:
    """Count the pairs: one list is scored against one text, or two lists of one length entry by entry."""
    request, reserved = decode(SCORE, body, _GUARD)
    sides = {name: bytes(_parts_of(getattr(request, name))) for name in SIDES}
    counts = {name: count_texts(side, name, MOST_INPUTS) for name, side in sides.items()}
    lone = b"".join([side for name, side in sides.items() if counts[name] == 1])
    return _paired(_facts(request.model, max(counts.values()), body, reserved), body, lone)


def _paired(facts: RequestFacts, body: bytes, query: bytes) -> RequestFacts:
    """Return these facts with the query once for each pair: a cross-encoder reads it anew with every document, and usage says so."""
    again, shape = facts.answers - 1, facts.shape
    if not query or again < 1 or shape is None:
        return facts
    fixed_tokens, text_bytes, more = measure(query)
    return facts._replace(
        fixed_tokens=facts.fixed_tokens + again * fixed_tokens,
        text_bytes=(len(body) if facts.text_bytes is None else facts.text_bytes)
        + again * (len(query) if text_bytes is None else text_bytes),
        shape=(
            shape[0],
            shape[1],
            shape[2] + again * more[2],
            shape[3] + again * more[3],
            shape[4] + again * more[4],
            shape[5] + again * more[5],
            shape[6] + again * more[6],
        ),
    )


def _parts_of(side: Raw) -> Raw:
    """Return the parts of a side in vLLM's multimodal form, each of which is a document up to 0.13; any other side as it is."""
    if not bytes(side).startswith(b"{"):
        return side
    try:
        return CONTENT.decode(side).content
    except msgspec.ValidationError:
        return side


def _facts(model: str | None, inputs: int, body: bytes, reserved: str, prompt: bytes = b"") -> RequestFacts:
    answers = max(1, inputs)
    facts = RequestFacts(named_model(model), False, 0, answers, include_usage=True, reserved=reserved)
    return measured_prompt(facts, body, prompt)


class Pooling(OpenAI):
    """Embeddings, rerank, score and pooling; the singleton `POOLING` is the dialect."""

    name: ClassVar[str] = "openai-pooling"
    readers: ClassVar[Mapping[bytes, Reader]] = {
        **dict.fromkeys((b"/v1/embeddings", b"/classify"), _read_embedding),
        b"/v2/embed": _read_cohere_embedding,
        b"/pooling": _read_pooling,
        **dict.fromkeys((b"/v1/rerank", b"/v2/rerank", b"/rerank"), _read_rerank),
        **dict.fromkeys((b"/v1/score", b"/score"), _read_score),
    }
    conversations: ClassVar[Mapping[bytes, ConversationReader]] = {}
    light: ClassVar[frozenset[bytes]] = frozenset()

    def read_usage(self, answer: bytes) -> Usage | None:
        """Find the prompt tokens; there are no others, and Cohere's form calls them billed."""
        usage = super().read_usage(answer)
        if usage is not None:
            return usage._replace(output_tokens=0)
        billed = answer.rfind(b'"billed_units"')
        return Usage(None if billed < 0 else count(_BILLED_TOKENS, answer, billed), 0)


POOLING = Pooling()

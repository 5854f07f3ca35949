"""Answers of an engine that reads and does not write: embeddings, pooling, rerank, scores, and counting tokens.

They are made at once, without the batch: the numbers mean nothing, only their number and shape are right.
"""

import base64
import struct
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from millgate.servers.emulator.requests import BYTES_PER_TOKEN, BadRequestError, RequestReader, Surface

DIMENSIONS: Final = 8
"""Enough for clients that look at the length of a vector."""


class _Body(msgspec.Struct):
    model: str = ""
    input: str | list[str | int | list[int]] = ""
    texts: list[str] = []
    encoding_format: str = "float"
    query: str = ""
    documents: list[msgspec.Raw] = []
    text_1: str | list[str] = ""
    text_2: str | list[str] = ""
    prompt: str = ""
    tokens: list[int] = []


_DECODER: Final = msgspec.json.Decoder(_Body)


class PoolingAnswers:
    """Answers the paths in `paths`; `reader` counts the tokens of messages."""

    def __init__(self, reader: RequestReader, model_name: str) -> None:
        self._model_name = model_name
        self.paths: Mapping[bytes, Callable[[bytes], object]] = {
            b"/v1/embeddings": self._embeddings,
            b"/pooling": self._pooling,
            b"/classify": self._classify,
            b"/v2/embed": self._cohere_embeddings,
            **dict.fromkeys((b"/v1/rerank", b"/v2/rerank", b"/rerank"), self._rerank),
            **dict.fromkeys((b"/v1/score", b"/score"), self._score),
            b"/tokenize": self._tokenize,
            b"/detokenize": lambda body: {"prompt": " tok" * len(_decode(body).tokens)},
            b"/v1/messages/count_tokens": lambda body: {
                "input_tokens": reader.read(body, Surface.MESSAGES).prompt_tokens
            },
        }

    def answer(self, path: bytes, body: bytes) -> bytes:
        """Return the JSON answer; BadRequestError when a field is wrong."""
        return msgspec.json.encode(self.paths[path](body))

    def _embeddings(self, body: bytes) -> object:
        asked, vector = _decode(body), _vector()
        packed = base64.b64encode(struct.pack(f"<{DIMENSIONS}f", *vector)).decode()
        embedding = packed if asked.encoding_format == "base64" else vector
        return self._for_inputs(asked, object="embedding", embedding=embedding)

    def _pooling(self, body: bytes) -> object:
        return self._for_inputs(_decode(body), object="pooling", data=_vector())

    def _classify(self, body: bytes) -> object:
        return self._for_inputs(_decode(body), label="LABEL_0", probs=[1.0, 0.0], num_classes=2)

    def _for_inputs(self, asked: _Body, **row: object) -> object:
        return self._listed(asked, _count(asked.input), asked.input, **row)

    def _listed(self, asked: _Body, count: int, given: object, **row: object) -> object:
        """Return a list of this row so many times, for what was given, whose tokens are counted."""
        data = [{"index": index, **row} for index in range(count)]
        usage, model = _usage(msgspec.json.encode(given)), asked.model or self._model_name
        return {"id": "embd-0", "object": "list", "created": 0, "model": model, "data": data, "usage": usage}

    def _cohere_embeddings(self, body: bytes) -> object:
        texts = _decode(body).texts
        billed = {"input_tokens": _tokens(msgspec.json.encode(texts))}
        return {
            "id": "embd-0",
            "embeddings": {"float": [_vector() for _ in texts]},
            "texts": texts,
            "meta": {"api_version": {"version": "2"}, "billed_units": billed},
        }

    def _rerank(self, body: bytes) -> object:
        asked = _decode(body)
        count = len(asked.documents)
        results = [
            {"index": index, "document": _document(document), "relevance_score": 1.0 - index / count}
            for index, document in enumerate(asked.documents)
        ]
        read = [asked.query.encode("utf-8", "surrogatepass") * count, *map(bytes, asked.documents)]
        usage, model = _usage(b"".join(read)), asked.model or self._model_name
        return {"id": "rerank-0", "model": model, "usage": usage, "results": results}

    def _score(self, body: bytes) -> object:
        asked = _decode(body)
        sides = [1 if isinstance(side, str) else len(side) for side in (asked.text_1, asked.text_2)]
        return self._listed(asked, max(sides), [asked.text_1, asked.text_2], object="score", score=0.5)

    def _tokenize(self, body: bytes) -> object:
        """Number the tokens of a prompt, as many as generation would count."""
        count = _tokens(_decode(body).prompt.encode("utf-8", "surrogatepass"))
        return {"count": count, "max_model_len": 0, "tokens": list(range(count))}


def _decode(body: bytes) -> _Body:
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BadRequestError("body", "must be a JSON object with the fields of this path") from None


def _count(given: str | list[str | int | list[int]]) -> int:
    alone = isinstance(given, str) or all(isinstance(item, int) for item in given)
    return 1 if alone else len(given)


def _vector() -> list[float]:
    return [1.0] + [0.0] * (DIMENSIONS - 1)


def _document(raw: msgspec.Raw) -> object:
    return {"text": msgspec.json.decode(raw)} if bytes(raw).startswith(b'"') else raw


def _tokens(text: bytes) -> int:
    return max(1, -(-len(text) // BYTES_PER_TOKEN))


def _usage(text: bytes) -> dict[str, int]:
    count = _tokens(text)
    return {"prompt_tokens": count, "total_tokens": count, "completion_tokens": 0}

"""What is read of requests for embeddings, rerank, score and pooling.

Structs stay with the interpreter, as the compiler drops the keywords of their classes; what reads them is compiled.
"""

from typing import Final

import msgspec
from msgspec import Raw

from millgate.dialects.bodies import ABSENT, Model


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
    """A request to order documents; llama.cpp takes `texts` where it cannot read the documents."""

    model: Model | None = None
    documents: Raw
    texts: Raw = ABSENT


class PoolingScore(msgspec.Struct, gc=False):
    """A request to score texts against each other, under any of the names that engines take for the two sides."""

    model: Model | None = None
    text_1: Raw = ABSENT
    text_2: Raw = ABSENT
    queries: Raw = ABSENT
    documents: Raw = ABSENT
    data_1: Raw = ABSENT
    data_2: Raw = ABSENT


EMBEDDING: Final = msgspec.json.Decoder(Embedding)
COHERE_EMBEDDING: Final = msgspec.json.Decoder(CohereEmbedding)
RERANK: Final = msgspec.json.Decoder(Rerank)
SCORE: Final = msgspec.json.Decoder(PoolingScore)

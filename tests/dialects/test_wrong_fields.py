"""Whatever a field holds, a reader reads it or refuses the body: any other end is a fault of the gate."""

import contextlib
import json
from typing import Any, Final

import pytest

from millgate.dialects import DIALECTS
from millgate.dialects.contract import BadInputError, Reader

_FIELDS: Final = [
    "model",
    "messages",
    "prompt",
    "input",
    "inputs",
    "texts",
    "images",
    "documents",
    "query",
    "queries",
    "text_1",
    "text_2",
    "data_1",
    "data_2",
    "data",
    "voice",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "min_tokens",
    "ignore_eos",
    "n",
    "best_of",
    "n_cmpl",
    "n_predict",
    "prompt_embeds",
    "content",
    "echo",
    "logprobs",
    "stream",
    "stream_options",
    "stop",
    "stop_sequences",
    "logit_bias",
    "tools",
    "system",
    "store",
    "background",
    "previous_response_id",
    "conversation",
]
_WRONG: Final[tuple[Any, ...]] = (
    None, True, 0, -1, 10**30, 1.5, "", "x", "\ud800", [], [None], [0], ["x"], [[]], [{}], {}, {"id": None}, {"id": {}}, {"x": 1}
)  # fmt: skip
_MESSAGES: Final = [{"role": "user", "content": "hi"}]
_WHOLE: Final[dict[str, Any]] = {
    "model": "m",
    "messages": _MESSAGES,
    "max_tokens": 5,
    "prompt": "hi",
    "input": "hi",
    "inputs": [{"content": [{"type": "text", "text": "hi"}]}],
    "texts": ["hi"],
    "documents": ["hi"],
    "query": "hi",
    "text_1": "hi",
    "text_2": "hi",
    "voice": "v",
}
_READERS: Final = {path: read for dialect in DIALECTS.values() for path, read in dialect.readers.items()}


def end(read: Reader, body: dict[str, Any]) -> None:
    """Read this body, or hear that it is bad."""
    with contextlib.suppress(BadInputError):
        read(json.dumps(body).encode())


@pytest.mark.parametrize(("path", "read"), _READERS.items(), ids=[path.decode() for path in _READERS])
def test_a_field_of_any_kind_or_none_is_read_or_refused(path: bytes, read: Reader) -> None:
    for field in _FIELDS:
        for rest in (_WHOLE, {}):
            end(read, {name: value for name, value in rest.items() if name != field})
            for wrong in _WRONG:
                end(read, {**rest, field: wrong})


def test_every_path_is_tried() -> None:
    assert len(_READERS) > 10

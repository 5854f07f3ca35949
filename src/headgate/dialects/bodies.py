"""Decoding a JSON request body, or saying what is wrong with it, without a word of its content.

Requests are decoded into structs that skip what they do not know: a 2 MB body costs 0.6 ms and unknown fields
pass untouched. Errors name the field and the limit.
"""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Raw

from headgate.dialects import duplicates
from headgate.dialects.contract import MOST_TOKENS, BadInputError

MOST_ANSWERS = 128
MOST_MODEL_CHARS = 256
MOST_PROMPTS = 1_024
# OpenAI documents 4 stop strings, 128 tools and 300 biases; engines take more. These bounds only keep a
# request from blocking an engine's own event loop (CVE-2026-34756 is what happens without them).
MOST_STOPS = 256
MOST_BIASES = 4_096
MOST_TOOLS = 1_024
MOST_MESSAGES = 65_536
MOST_INPUTS = 2_048
"""OpenAI's documented bound for embeddings; Cohere advises against more than 1,000 documents to rerank."""

LIMITS: Mapping[str, str] = {
    "max_tokens": f"an integer from 1 to {MOST_TOKENS}",
    "max_completion_tokens": f"an integer from 1 to {MOST_TOKENS}",
    "max_output_tokens": f"an integer from 1 to {MOST_TOKENS}",
    "min_tokens": f"an integer from 0 to {MOST_TOKENS}",
    "n": f"an integer from 1 to {MOST_ANSWERS}",
    "best_of": f"an integer from 1 to {MOST_ANSWERS}",
    "stop": f"a string or at most {MOST_STOPS} strings",
    "stop_sequences": f"at most {MOST_STOPS} strings",
    "logit_bias": f"an object of at most {MOST_BIASES} entries",
    "tools": f"an array of at most {MOST_TOOLS} entries",
    "messages": f"an array of 1 to {MOST_MESSAGES} messages",
    "prompt": f"a string, an array of token ids, or at most {MOST_PROMPTS} of either",
    "input": f"a string, an array of token ids, or at most {MOST_INPUTS} of either",
    "documents": f"an array of at most {MOST_INPUTS} entries",
    "stream": "true or false",
    "store": "true or false",
    "background": "true or false",
    "model": f"at most {MOST_MODEL_CHARS} printable characters",
}

Tokens = Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
LeastTokens = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]
Answers = Annotated[int, Meta(ge=1, le=MOST_ANSWERS)]
Model = Annotated[str, Meta(max_length=MOST_MODEL_CHARS)]
Tools = Annotated[list[Raw], Meta(max_length=MOST_TOOLS)]
Messages = Annotated[list[Raw], Meta(min_length=1, max_length=MOST_MESSAGES)]
ABSENT = Raw(b"")

_Body = TypeVar("_Body")
_FIELD = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<where>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(\w+)`")
_lists = {
    most: msgspec.json.Decoder(Annotated[list[Raw], Meta(max_length=most)])
    for most in (MOST_PROMPTS, MOST_INPUTS)
}


def decode(
    decoder: msgspec.json.Decoder[_Body],
    body: bytes,
    doubled: Callable[[bytes], str | None] = duplicates.find,
) -> _Body:
    """Decode a body; raise BadInputError for what is no JSON, is beyond a limit, or names a field twice."""
    try:
        if not body.isascii():
            body.decode()  # msgspec skips unknown strings without looking at their UTF-8
        request = decoder.decode(body)
    except UnicodeDecodeError as error:
        raise BadInputError(f"body is not valid UTF-8 (byte {error.start})") from None
    except msgspec.ValidationError as error:
        raise _named(str(error)) from None
    except msgspec.DecodeError as error:
        raise BadInputError(
            f"body is not valid JSON: {str(error).removeprefix('JSON is malformed: ')}"
        ) from None
    except RecursionError:
        raise BadInputError("body is nested too deeply") from None
    if field := doubled(body):
        raise BadInputError(f"{field}: the field appears more than once", field)
    return request


def named_model(model: str | None) -> str:
    """Return the model's name, empty when there is none; raise BadInputError for control characters."""
    if not model:
        return ""
    if not model.isprintable():
        raise BadInputError("model: control characters are not allowed", "model")
    return model


def count_texts(raw: bytes, field: str, most: int) -> int:
    """Count the texts of `prompt` or `input`: a batch holds strings or arrays, numbers alone are one text of token ids.

    `most` is MOST_PROMPTS or MOST_INPUTS.
    """
    inner = raw[1:].lstrip() if raw.startswith(b"[") else b""
    if inner[:1] not in {b'"', b"[", b"{"}:
        if raw[:1] not in {b"", b'"', b"[", b"n"}:
            raise BadInputError(f"{field}: expected {LIMITS[field]}", field)
        return 1
    try:
        return len(_lists[most].decode(raw))
    except msgspec.ValidationError:
        raise BadInputError(f"{field}: expected {LIMITS[field]}", field) from None


def _named(complaint: str) -> BadInputError:
    """Turn a validation complaint into one that names the field and its limit."""
    if missing := _MISSING.search(complaint):
        field = missing.group(1)
        return BadInputError(f"{field}: the field is required: {LIMITS[field]}", field)
    match = _FIELD.match(complaint)
    what, where = (match.group("what"), match.group("where")) if match else (complaint, None)
    what = what.replace("`", "").replace("Expected", "expected", 1)
    if not where:
        return BadInputError(f"body: {what}")
    field = where.partition("[")[0].partition(".")[0]
    limit = LIMITS.get(field)
    return BadInputError(f"{where}: {what}" + (f"; allowed: {limit}" if limit else ""), field)

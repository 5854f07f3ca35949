"""Decoding a JSON request body, or saying what is wrong with it, without a word of its content.

Requests are decoded into structs that skip what they do not know: a 2 MB body costs 0.6 ms and unknown fields
pass untouched. Errors name the field and the limit.
"""

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Raw

from millgate.dialects.arrays import FILLED, AtMost, check_members, check_objects, check_rows
from millgate.dialects.contract import MOST_TOKENS, BadInputError
from millgate.dialects.duplicates import COMMON, FieldGuard

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
SIDES: Final = ("text_1", "text_2", "data_1", "data_2", "queries", "documents", "items")
"""What texts to score come as, by the names of several engines."""

LIMITS: Mapping[str, str] = {
    "max_tokens": f"an integer from 1 to {MOST_TOKENS} (0 for a completion with echo, or to fill Anthropic's cache)",
    "max_completion_tokens": f"an integer from 1 to {MOST_TOKENS}",
    "max_output_tokens": f"an integer from 1 to {MOST_TOKENS}",
    "n_predict": f"an integer from -2 to {MOST_TOKENS}, below 0 for no bound",
    "min_tokens": f"an integer from 0 to {MOST_TOKENS}",
    "n": f"an integer from 1 to {MOST_ANSWERS}",
    "n_cmpl": f"an integer from 1 to {MOST_ANSWERS}",
    "best_of": f"an integer from 1 to {MOST_ANSWERS}",
    "stop": f"a string or at most {MOST_STOPS} strings",
    "stop_sequences": f"at most {MOST_STOPS} strings",
    "logit_bias": f"an object of at most {MOST_BIASES} entries",
    "tools": f"an array of at most {MOST_TOOLS} entries",
    "messages": f"an array of 1 to {MOST_MESSAGES} messages",
    "prompt": f"a string, an array of token ids, or at most {MOST_PROMPTS} of either",
    "prompt_embeds": f"a string or at most {MOST_PROMPTS} strings",
    **dict.fromkeys(
        ("input", *SIDES), f"a string, an array of token ids, or at most {MOST_INPUTS} of either"
    ),
    "documents": f"an array of at most {MOST_INPUTS} entries, or an object with one as its content",
    "texts": f"an array of at most {MOST_INPUTS} strings",
    "images": f"an array of at most {MOST_INPUTS} data URLs",
    "inputs": f"an array of at most {MOST_INPUTS} entries",
    "stream": "true or false",
    "store": "true or false",
    "background": "true or false",
    "model": f"at most {MOST_MODEL_CHARS} printable characters",
}

Tokens = Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
LeastTokens = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]
Predicted = Annotated[int, Meta(ge=-2, le=MOST_TOKENS)]
Answers = Annotated[int, Meta(ge=1, le=MOST_ANSWERS)]
Model = Annotated[str, Meta(max_length=MOST_MODEL_CHARS)]
Tools = Raw
Messages = Raw
"""Both left as they are: `decode` holds them, and raw fields named in `_BOUNDS`, to their limits."""
ABSENT = Raw(b"")

_Body = TypeVar("_Body", bound=msgspec.Struct)
_FIELD = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<where>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(\w+)`")
_HALF: Final = re.compile(rb"(?<!\\)\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])")
"""An escape that wants a second one, which is not there; at the end of a body the parser says of it that the body is not whole."""
_SHORT_BYTES: Final = 4096
"""A body up to this is searched for names as it is, which takes 2 us; in a longer one arrays are cut out first."""
_utf8: Final = codecs.getincrementaldecoder("utf-8")
_PIECE_BYTES: Final = 65_536
_FIRST: Final = re.compile(rb"\[\s*([\"\[{])")
"""How an array of texts, of arrays or of objects begins."""
_ROWS: Final = re.compile(rb"\[\s*\[")
"""How an array of conversations begins, where one conversation has a message."""
_texts: Final = {most: AtMost(Raw, most) for most in (MOST_PROMPTS, MOST_INPUTS)}
_stops: Final = AtMost(str, MOST_STOPS)


def _check_objects(array: Raw, least: int, most: int) -> None:
    """Look closer only where there may be too many or none: an object and its comma are three bytes at least."""
    if len(array) > 2 * most or FILLED.match(array) is None:
        check_objects(array, least, most)


_BOUNDS: Final[Mapping[str, Callable[[Raw], object]]] = {
    "messages": lambda messages: _check_objects(messages, 1, MOST_MESSAGES),
    "tools": lambda tools: _check_objects(tools, 0, MOST_TOOLS),
    "stop": lambda stop: None if bytes(stop).startswith(b'"') else _stops.count(stop),
    "stop_sequences": _stops.count,
    "logit_bias": lambda biases: check_members(biases, MOST_BIASES),
}


@lru_cache(maxsize=64)  # as many as there are kinds of requests
def _bounds(kind: type[msgspec.Struct]) -> tuple[tuple[str, Callable[[Raw], object], bool], ...]:
    """Return which fields of this kind of request are held to a limit, how, and whether null stands for none."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    return tuple(
        (name, check, not fields[name].required) for name, check in _BOUNDS.items() if name in fields
    )


@lru_cache(maxsize=64)
def _raw_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the fields of this kind of request that are left as they are."""
    return tuple(field.name for field in msgspec.structs.fields(kind) if field.type is Raw)


def _arrays(request: msgspec.Struct) -> list[Raw]:
    """Return the raw fields of a request that are arrays with something in them."""
    values = [getattr(request, name) for name in _raw_fields(type(request))]
    return [value for value in values if value is not ABSENT and FILLED.match(value) is not None]


def _check_bounds(request: msgspec.Struct) -> None:
    """Raise BadInputError for a raw field beyond its limit."""
    for name, check, optional in _bounds(type(request)):
        value = getattr(request, name)
        if value is ABSENT or (optional and len(value) == 4 and bytes(value) == b"null"):
            continue
        try:
            check(value)
        except msgspec.ValidationError as error:
            raise _named(str(error), name) from None


def decode(
    decoder: msgspec.json.Decoder[_Body], body: bytes, guard: FieldGuard = COMMON
) -> tuple[_Body, str]:
    """Decode a body; return it and the reserved field that it names, empty for none.

    BadInputError for what is no JSON, is beyond a limit, or names a field twice.
    """
    request = parse(decoder, body)
    return request, check_request(request, body, guard)


def check_request(request: msgspec.Struct, body: bytes, guard: FieldGuard) -> str:
    """Return the reserved field of a body; raise BadInputError for a raw field beyond its limit, or one that is there twice."""
    _check_bounds(request)
    return check_fields(body, _arrays(request) if len(body) > _SHORT_BYTES else (), guard)


def check_fields(body: bytes, arrays: Sequence[Raw], guard: FieldGuard) -> str:
    """Return the reserved field of a body; raise BadInputError for one that is there twice. `arrays` are not looked at."""
    twice, reserved = guard.find(body, arrays)
    if twice:
        raise BadInputError(f"{twice}: the field appears more than once", twice)
    return reserved


def not_yours(field: str) -> BadInputError:
    """Say that a reserved field is not for clients."""
    return BadInputError(
        f"{field}: the gate alone tells engines whose cache to use; remove the field, or let the operator name this "
        "peer in listen.trusted_peers",
        field,
        code="reserved_field",
    )


def no_such_model(model: str) -> BadInputError:
    """Say that no engine is there for the model, or that none is named, where not every name is passed on."""
    if not model:
        return BadInputError("model: the field is required; /v1/models lists the names", "model")
    return BadInputError("no engine here answers for this model", "model", status=404, code="model_not_found")


def parse(decoder: msgspec.json.Decoder[_Body], body: bytes) -> _Body:
    """Do as `decode` does, but leave the bounds of raw fields and fields that are named twice to the caller."""
    try:
        if not body.isascii():
            check_utf8(body)  # msgspec skips unknown strings without looking at theirs
        request = _decoded(decoder, body)
    except msgspec.ValidationError as error:
        raise _named(str(error)) from None
    except msgspec.DecodeError as error:
        if not body:
            raise BadInputError("body is empty: a JSON object is expected") from None
        what = str(error).removeprefix("JSON is malformed: ")
        if half := _HALF.search(body):
            what = f"half of a surrogate pair, as of an emoji that was cut in two (byte {half.start()})"
        raise BadInputError(f"body is not valid JSON: {what}") from None
    except RecursionError:
        raise BadInputError("body is nested too deeply") from None
    return request


def _decoded(decoder: msgspec.json.Decoder[_Body], body: bytes) -> _Body:
    """Decode a body, also where a whole number is written as `100.0`: engines of Python and C++ take it."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        if "got `float`" not in str(error):
            raise
    return msgspec.json.decode(body, type=decoder.type, strict=False)


def check_utf8(body: bytes) -> None:
    """Raise BadInputError for what is no UTF-8; piece by piece, as one emoji makes text of four bytes a character."""
    reader = _utf8()
    begin = 0
    try:
        for at in range(0, len(body), _PIECE_BYTES):
            begin = at - len(reader.getstate()[0])
            reader.decode(body[at : at + _PIECE_BYTES], at + _PIECE_BYTES >= len(body))
    except UnicodeDecodeError as error:
        raise BadInputError(f"body is not valid UTF-8 (byte {begin + error.start})") from None


def named_model(model: str | None) -> str:
    """Return the model's name, empty when there is none; raise BadInputError for control characters."""
    if not model:
        return ""
    if not model.isprintable():
        raise BadInputError("model: control characters are not allowed", "model")
    return model


def is_given(part: Raw) -> bool:
    """Whether a raw field is there and not null."""
    return len(part) > 4 or bytes(part) not in {b"", b"null"}


def most_of(*counts: int | None) -> int:
    """Return the largest of the counts that a request gives under several names: engines differ in which one they take."""
    return max([1, *filter(None, counts)])


def bound_of(usual: int | None, predicted: int | None) -> int | None:
    """Return the bound of an answer that holds at every engine: llama.cpp takes the second of two names, others know the first alone."""
    if usual is None or predicted is None:
        return usual
    return None if predicted < 0 else max(predicted, usual)


def count_texts(raw: bytes, field: str, most: int) -> int:
    """Count the texts of `prompt` or `input`: a batch holds strings or arrays, numbers alone are one text of token ids.

    `most` is MOST_PROMPTS or MOST_INPUTS.
    """
    if _FIRST.match(raw) is None:
        if raw[:1] not in {b"", b'"', b"[", b"n"}:
            raise BadInputError(f"{field}: expected {LIMITS[field]}", field)
        return 1
    try:
        return _texts[most].count(Raw(raw))
    except msgspec.ValidationError:
        raise BadInputError(f"{field}: expected {LIMITS[field]}", field) from None


def count_conversations(messages: Raw) -> int:
    """Count what vLLM takes for `messages` in a batch: at most MOST_PROMPTS arrays of MOST_MESSAGES messages in all.

    An array of messages is one conversation, whatever it is sent to.
    """
    try:
        if _ROWS.match(messages) is None:
            _check_objects(messages, 1, MOST_MESSAGES)
            return 1
        conversations = _texts[MOST_PROMPTS].count(messages)
        check_rows(messages, MOST_MESSAGES)
    except msgspec.ValidationError as error:
        raise _named(str(error), "messages") from None
    return conversations


def count_entries(array: Raw, field: str, most: int) -> int:
    """Count the entries of an array, whatever they are; `most` is MOST_PROMPTS or MOST_INPUTS."""
    try:
        return _texts[most].count(array)
    except msgspec.ValidationError as error:
        raise _named(str(error), field) from None


def _named(complaint: str, raw_field: str = "") -> BadInputError:
    """Turn a validation complaint into one that names the field and its limit; `raw_field` was decoded by itself."""
    if missing := _MISSING.search(complaint):
        field = missing.group(1)
        limit = LIMITS.get(field)  # of a nested one, like a conversation's id, there may be none
        return BadInputError(f"{field}: the field is required" + (f": {limit}" if limit else ""), field)
    match = _FIELD.match(complaint)
    what, where = (match.group("what"), match.group("where")) if match else (complaint, None)
    what = what.replace("`", "").replace("Expected", "expected", 1)
    where = raw_field + (where or "")
    if not where:
        return BadInputError(f"body: {what}")
    field = where.partition("[")[0].partition(".")[0]
    limit = LIMITS.get(field)
    return BadInputError(f"{where}: {what}" + (f"; allowed: {limit}" if limit else ""), field)

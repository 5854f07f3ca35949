"""Cutting an answer short on request of the operator: which bodies bear it, and how it is written into one.

Half a tool call or half a JSON document is worth nothing, so bodies that ask for either are left alone.
"""

from typing import Final

import msgspec
from msgspec import Raw

from millgate.dialects.arrays import check_keys

MOST_MEMBERS: Final = 1024
"""Fields of a request that is rewritten: five times all that vLLM's chat completions know, with room for its extras."""

_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_LLAMA_LIMIT = "n_predict"
"""What llama.cpp takes before any of them, and no other engine."""
_ABSENT = Raw(b"")
_NOTHING = (b"", b"null", b"[]", b"{}")
_PLAIN = (b'"text"', b"")
_ENABLED = b'"enabled"'
_LEAST = "min_tokens"


class _Kind(msgspec.Struct):
    type: Raw = _ABSENT


class _Text(msgspec.Struct):
    format: _Kind | None = None


class _Wishes(msgspec.Struct):
    tools: Raw = _ABSENT
    functions: Raw = _ABSENT
    response_format: _Kind | None = None
    text: _Text | None = None
    output_config: _Text | None = None
    output_format: _Kind | None = None
    thinking: _Kind | None = None
    guided_json: Raw = _ABSENT
    guided_grammar: Raw = _ABSENT
    guided_regex: Raw = _ABSENT
    structured_outputs: Raw = _ABSENT
    grammar: Raw = _ABSENT
    ebnf: Raw = _ABSENT
    regex: Raw = _ABSENT
    json_schema: Raw = _ABSENT


_SHAPING = tuple(field.name for field in msgspec.structs.fields(_Wishes) if field.type is Raw)
"""Tools, schemas and grammars."""
_wishes = msgspec.json.Decoder(_Wishes)
_members = msgspec.json.Decoder(dict[str, Raw])


def may_clip(body: bytes) -> bool:
    """Return whether a shorter answer to this body would still be of use: no tools, no schema, no grammar.

    Nor where a part of `max_tokens` is set aside for thinking: Anthropic refuses a bound below that part.
    """
    try:
        wishes = _wishes.decode(body)
        check_keys(body, MOST_MEMBERS)
    except msgspec.DecodeError:
        return False
    shapes = [wishes.response_format, wishes.output_format]
    shapes += [text.format for text in (wishes.text, wishes.output_config) if text is not None]
    if any(shape is not None and bytes(shape.type) not in _PLAIN for shape in shapes):
        return False
    if wishes.thinking is not None and bytes(wishes.thinking.type) == _ENABLED:
        return False
    return all(bytes(getattr(wishes, name)) in _NOTHING for name in _SHAPING)


def clipped(body: bytes, max_tokens: int, *, path: bytes) -> bytes:
    """Return the body with its answer bounded by so many tokens, all else as it was; `may_clip` has agreed.

    No more than that may then be asked for at least: engines refuse a `min_tokens` above the bound.
    """
    fields = _members.decode(body)
    given = [name for name in _LIMITS if bytes(fields.get(name, _ABSENT)) not in _NOTHING]
    usual = "max_output_tokens" if path == b"/v1/responses" else "max_tokens"
    for name in (*(given or [usual]), *([_LLAMA_LIMIT] if _LLAMA_LIMIT in fields else [])):
        fields[name] = Raw(b"%d" % max_tokens)
    least = bytes(fields.get(_LEAST, _ABSENT))
    if least.isdigit() and int(least) > max_tokens:
        fields[_LEAST] = Raw(b"%d" % max_tokens)
    return msgspec.json.encode(fields)

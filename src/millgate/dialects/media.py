"""Images, audio and documents inside a JSON body: counted at a flat price, and their base64 not taken for text.

A megabyte of base64 would be sized as 250,000 prompt tokens where the engine sees about a thousand.
"""

import re
from itertools import islice
from typing import Any, Final

from millgate.core.events import PromptShape
from millgate.dialects.contract import BadInputError, RequestFacts
from millgate.dialects.prompt_shape import shape_of, shape_of_texts

MEDIA_TOKENS: Final = 800
"""One part that is no text. OpenAI charges 765 tokens for a 1024 x 1024 image in high detail. Anthropic
charges width x height / 750 and at most about 1,600, and Qwen2-VL one token for 28 x 28 pixels (1,300 for a megapixel)."""

EMBEDDED_TOKEN_BYTES: Final = 8_192
"""Of base64 in `prompt_embeds`: 4,096 numbers of two bytes are 10,900 bytes, 2,048 half as many."""
UNMEASURED: Final = RequestFacts._fields.index("fixed_tokens")
"""So many facts are said by the fields of a body; `measure` says the others."""
_FACTS: Final = RequestFacts
_new: Final = tuple.__new__
MOST_TYPED: Final = 65_536
"""Parts with a type in one body, of whatever kind; there are no more messages either."""
_BYTES_PER_TOKEN: Final = 4
"""Of text, so that a part that is no text can stand beside it."""
_MOST_MARKS: Final = 8_192
"""How many places are looked at for base64; data behind them counts as text."""
_LARGE_BYTES: Final = 4096
"""A body below this has no image in it worth subtracting."""
_VERY_LARGE_BYTES: Final = 262_144
"""A body is searched for the rarer marks from here on: each search takes a millisecond or two for a megabyte."""
_LEAST_DATA_BYTES: Final = 256
_SAMPLE_BYTES: Final = 64
_BACKSLASH: Final = 0x5C

_HAS_PARTS: Final = b'"type"'
_PART: Final = re.compile(
    rb'"type"\s*:\s*"(image"|image_url"|image_embeds"|image_generation_call"|input_image"|computer_screenshot"|input_audio"|audio_url"'
    rb'|video_url"|input_file"|file"|document")?'
)
# Where base64 begins: the end of a data URL's head, or the value of a field that holds nothing else.
_DATA_URL: Final = b";base64,"
_MARKS: Final = {_DATA_URL: _LARGE_BYTES, b'"data"': _LARGE_BYTES} | dict.fromkeys(
    (b'"result"', b'"file_data"', b'"image_embeds"'), _VERY_LARGE_BYTES
)
"""How long a text is searched for each; a `result` is an image that the model has made."""
_OPENING: Final = re.compile(rb'\s*:\s*"')
_TOKEN_IDS: Final = re.compile(rb"\[\s*(?:\[\s*)?\d")
"""How one list of token ids begins, or several; llama.cpp takes texts among them, which are measured as texts."""
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/_=\\-]+\Z")


def measure(body: bytes, tools: bytes = b"") -> tuple[int, int | None, PromptShape]:
    """Return the tokens of the parts that are no text, the length of the rest in bytes, and the shape of the rest.

    BadInputError for more typed parts than any conversation has. The length is None for a body without base64 worth a
    subtraction. A body without typed parts costs one search. `tools` is the array in it that declares tools.
    """
    first = body.find(_HAS_PARTS)
    if first < 0:
        return 0, None, shape_of(body, tools)
    text = _text_of(body)
    if text is body:
        return MEDIA_TOKENS * _parts(body, first), None, shape_of(body, tools)
    return MEDIA_TOKENS * _parts(text, 0), len(text), shape_of(text, tools)


def measured(facts: tuple[Any, ...], body: bytes, tools: bytes = b"") -> RequestFacts:
    """Return these facts with what this body is made of; their own `_replace`, interpreted, takes eight times as long."""
    return _new(_FACTS, facts[:UNMEASURED] + measure(body, tools))


def measured_texts(facts: tuple[Any, ...], body: bytes, messages: int | None) -> RequestFacts:
    """Do as `measured` does for a body without tools that has so many messages, all of them text; None where that is not known."""
    found = measure(body) if messages is None else (0, None, shape_of_texts(body, messages))
    return _new(_FACTS, facts[:UNMEASURED] + found)


def measured_prompt(facts: tuple[Any, ...], body: bytes, prompt: bytes) -> RequestFacts:
    """Do as `measured` does for a body with this prompt; token ids need no estimate: each is one token, and nothing else is read."""
    if _TOKEN_IDS.match(prompt) is None or prompt.find(b'"') >= 0:
        return measured(facts, body)
    return _new(_FACTS, (*facts[:UNMEASURED], prompt.count(b",") + 1, 0, None))


def priced(facts: RequestFacts, body: bytes, part: bytes, tokens: int) -> RequestFacts:
    """Return these facts with so many tokens in place of this part of the body, which is no text."""
    text_bytes = len(body) if facts.text_bytes is None else facts.text_bytes
    return facts._replace(
        fixed_tokens=facts.fixed_tokens + tokens, text_bytes=max(0, text_bytes - len(part)), shape=None
    )


def content_bytes(part: bytes) -> int:
    """Return the bytes of text that would have as many tokens as this part of a message has."""
    text = _text_of(part)
    return len(text) + _BYTES_PER_TOKEN * MEDIA_TOKENS * _parts(text, 0)


def _text_of(body: bytes) -> bytes:
    """Return a body without its base64, the body itself where it has none worth a subtraction."""
    text = body
    for mark, least_bytes in _MARKS.items():
        if len(text) >= least_bytes:
            text = _without_data(text, mark)
    return text


def _parts(text: bytes, begin: int) -> int:
    """Count the parts that are no text, from the first part of any kind on; BadInputError for a flood of parts."""
    media = typed = 0
    for part in islice(_PART.finditer(text, begin), MOST_TYPED + 1):
        typed += 1
        media += part[1] is not None
    if typed > MOST_TYPED:
        raise BadInputError(f"body: at most {MOST_TYPED} parts with a type are expected")
    return media


def _without_data(body: bytes, mark: bytes) -> bytes:
    """Cut out the base64 behind every mark; no quote can be in it, so its end is found by one search."""
    pieces: list[bytes] = []
    kept_to, at = 0, body.find(mark)
    for _ in range(_MOST_MARKS):
        if at < 0:
            break
        begin = end = at + len(mark)
        opening = None if mark == _DATA_URL else _OPENING.match(body, begin)
        if opening is not None or mark == _DATA_URL:
            begin = begin if opening is None else opening.end()
            end = max(begin, body.find(b'"', begin))
            if end - begin >= _LEAST_DATA_BYTES and _looks_encoded(body, begin, end):
                pieces.append(body[kept_to:begin])
                kept_to = end
        at = body.find(mark, end)
    return b"".join((*pieces, body[kept_to:])) if pieces else body


def _looks_encoded(body: bytes, begin: int, end: int) -> bool:
    """Look at both ends and the middle: text has spaces, and a document's `data` may be text."""
    if body[end - 1] == _BACKSLASH:  # the quote is one of a text, such as a page that a tool has read
        return False
    middle = (begin + end) // 2
    starts = (begin, middle, end - _SAMPLE_BYTES)
    return all(_BASE64.match(body[start : start + _SAMPLE_BYTES]) for start in starts)

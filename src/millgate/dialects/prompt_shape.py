"""Of what kinds of characters a request's text is: what its tokens are estimated from, at a bounded price.

A tokeniser makes a token of four or five letters of a word, of two or three digits, of one or two signs, of one or two
characters of Chinese. Which of them a body has, and how many messages and tools, tells its tokens within a few per cent
where its length alone is wrong by a third (`tests/core/sizing/test_prompt_line.py`).
"""

from typing import Final

import msgspec

from millgate.core.events import PromptShape
from millgate.dialects.contract import UNREADABLE

_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SPACE: Final = b" "
_DIGIT: Final = b"0"
_BEYOND: Final = b"\x80"
_KINDS: Final = b"".join(
    _BEYOND if byte >= 128 else _SPACE if byte == 32 else _DIGIT if 48 <= byte <= 57 else b"."
    for byte in range(256)
)
"""For each byte one that stands for all of its kind; any other is a sign."""
_ROLE: Final = b'role"'
"""Once in each message. Texts are full of quotes: with the one before it a search stops at each of them."""
_SAMPLE_BYTES: Final = 256
"""Of a longer text every n-th byte is looked at, 170 to 510 in all. `tests/core/sizing/test_prompt_line.py` holds the
error that this leaves to its bounds; twice as many bytes take 3 % more instructions of a request (`python -m
bench.instructions json`)."""
_STRIDES: Final = (1, 1, 3, 7, 11, 23, 53, 97, 193, 389, 769, 1543, 3079, 6151, 12289, 24593, 49157)
"""That n, by how often the text's length doubles the sample's: primes, for a text may repeat itself, as a table does."""
_ESCAPING: Final = b"\\"
_ESCAPING_BYTE: Final = 92
"""The same as a number: looking for one takes a fifth as long as for bytes, which goes through an exception."""
_ESCAPE: Final = b"\\u"
_DENSE_BYTES: Final = 48
"""JSON may write a character beyond ASCII as \\u4e2d. A text with one in so many bytes is counted as it would be without."""
_MOST_ESCAPED_BYTES: Final = 262_144
"""A longer text is not written anew: that is three milliseconds, and 40,000 characters of Chinese."""

_MOST_NESTED: Final = 4_096
"""So many arrays and objects a conversation has; sixty thousand of them in such a text take forty milliseconds."""


def shape_of(body: bytes, tools: bytes = b"") -> PromptShape:
    """Return the shape of a JSON body, `tools` being the array in it that declares tools, as it stands there."""
    shape = shape_of_texts(body, body.count(_ROLE))
    if not tools.startswith(b"["):  # `null` declares none
        return shape
    own = shape_of_texts(tools, tools.count(_ROLE))
    return (
        shape[0] - own[0],
        len(tools),
        max(0, shape[2] - own[2]),
        max(0, shape[3] - own[3]),
        max(0, shape[4] - own[4]),
        max(0, shape[5] - own[5]),
        max(0, shape[6] - own[6]),
    )


def _without_escapes(text: bytes) -> bytes:
    if (
        len(text) > _MOST_ESCAPED_BYTES
        or text.count(_ESCAPE) * _DENSE_BYTES < len(text)
        or text.count(b"[") + text.count(b"{") > _MOST_NESTED
    ):
        return text
    try:
        return msgspec.json.encode(msgspec.json.decode(text))
    except UNREADABLE:
        return text


def shape_of_texts(text: bytes, messages: int) -> PromptShape:
    """Return the shape of a JSON text of so many messages, without tools; an escaped line end in it is nothing."""
    escapes = 0
    if _ESCAPING_BYTE in text:
        text = _without_escapes(text)
        escapes = text.count(_ESCAPING)
    doubled = (len(text) // _SAMPLE_BYTES).bit_length()
    sample = text[:: _STRIDES[min(doubled, len(_STRIDES) - 1)]]
    part = len(text) / max(1, len(sample))
    others = sample.translate(_KINDS, _LETTERS)
    spaces, digits = others.count(_SPACE), others.count(_DIGIT)
    beyond = 0 if others.isascii() else others.count(_BEYOND)
    return (
        messages,
        0,
        max(0, _rounded(part * (len(sample) - len(others))) - escapes),
        _rounded(part * spaces),
        _rounded(part * digits),
        max(0, _rounded(part * (len(others) - spaces - digits - beyond)) - escapes),
        _rounded(part * beyond),
    )


def _rounded(count: float) -> int:
    """Return the nearest whole number; `round` is called as an object is, and takes ten times as long."""
    return int(count + 0.5)

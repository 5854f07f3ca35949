"""Does a JSON object name a field twice?

Every fast parser keeps the last of two equal keys, silently; an engine behind the gate may keep the first. Two
readings of one body are a way around a limit, so the few fields that limits hang on may appear once only.
"""

import re
from collections.abc import Sized

from headgate.dialects.arrays import read_keys

FIELDS = ("model", "stream", "max_tokens", "max_completion_tokens")

# An escaped letter or underscore: no encoder writes one, but "mod\u0065l" is a second "model".
_ESCAPED_LETTER = re.compile(rb"\\u00(?:5[fF]|[64][1-9a-fA-F]|[75][0-9aA])")


class Guard:
    """Watches over the fields of one kind of request."""

    __slots__ = ("_fields", "_names")

    def __init__(self, fields: tuple[str, ...]) -> None:
        self._fields = fields
        self._names = tuple(f'"{field}"'.encode() for field in fields)

    def find(self, body: bytes, array: Sized = b"") -> str | None:
        """Return the guarded field that this valid JSON object names more than once, or None.

        `array` is the value of one of its other fields: where it is the only array, nothing inside it is looked at.

        A count of each quoted name decides nearly always; only bodies in which one of them stands twice (a tool
        with a parameter called "model") are looked at again.
        """
        begin = body.find(b"[")
        end = body.rfind(b"]") + 1
        # From the first bracket to the last: no other array is as long.
        outside = body[:begin] + body[end:] if end - begin == len(array) else body
        if b"\\u00" in outside and _ESCAPED_LETTER.search(outside):
            return self._look_again(body)
        for quoted in self._names:
            if outside.count(quoted) > 1:
                return self._look_again(body)
        return None

    def _look_again(self, body: bytes) -> str | None:
        """Count the object's own keys as a parser reads them, without keeping any of it."""
        counts = dict.fromkeys(self._fields, 0)

        def note(key: str) -> None:
            if key in counts:
                counts[key] += 1

        read_keys(body, note)
        return next((field for field, count in counts.items() if count > 1), None)


find = Guard(FIELDS).find
"""The guard of the fields that chat completions, completions and messages have in common."""

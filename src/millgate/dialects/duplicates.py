"""Does a JSON object name a field twice?

Every fast parser keeps the last of two equal keys, silently; an engine behind the gate may keep the first. Two
readings of one body are a way around a limit, so the few fields that limits hang on may appear once only.
"""

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Raw, ValidationError

from millgate.dialects.arrays import read_keys
from millgate.dialects.contract import BadInputError

FIELDS = ("model", "stream", "max_tokens", "max_completion_tokens", "min_tokens", "ignore_eos", "n")

MOST_MEMBERS: Final = 4_096
"""How many fields a body that has to be looked at again may have: providers document some forty."""
_LONG_BYTES: Final = 65_536
"""Beyond this one more reading takes less time than a search for each name."""
# An escaped letter or underscore: no encoder writes one, but "mod\u0065l" is a second "model".
_ESCAPED_LETTER = re.compile(rb"\\u00(?:5[fF]|[64][1-9a-fA-F]|[75][0-9aA])")


class DuplicateGuard:
    """Watches over the fields of one kind of request."""

    __slots__ = ("_fields", "_names")

    def __init__(self, fields: tuple[str, ...]) -> None:
        self._fields = fields
        self._names = tuple(f'"{field}"'.encode() for field in fields)

    def find(self, body: bytes, arrays: Sequence[Raw] = ()) -> str | None:
        """Return the guarded field that this valid JSON object names more than once, or None; BadInputError for a flood.

        `arrays` are values of its other fields, in which nothing needs to be looked at.

        A count of each quoted name decides nearly always; only bodies in which one of them stands twice are looked
        at again.
        """
        if len(body) - sum(map(len, arrays), 0) > _LONG_BYTES:
            return self._look_again(body)
        outside = _outside(body, arrays)
        if outside.find(b"\\u00") >= 0 and _ESCAPED_LETTER.search(outside):
            return self._look_again(body)
        for quoted in self._names:
            if outside.count(quoted) > 1:
                return self._look_again(body)
        return None

    def _look_again(self, body: bytes) -> str | None:
        """Count the object's own keys as a parser reads them, without keeping any of it."""
        counts = dict.fromkeys(self._fields, 0)
        left = MOST_MEMBERS

        def note(key: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise ValueError("too many members")
            if key in counts:
                counts[key] += 1

        try:
            read_keys(body, note)
        except ValidationError:
            raise BadInputError(f"body: an object of at most {MOST_MEMBERS} fields is expected") from None
        return next((field for field, count in counts.items() if count > 1), None)


def _outside(body: bytes, arrays: Sequence[Raw]) -> bytes:
    """Return the body without these arrays, as far as they can be found at once."""
    if len(arrays) == 1:
        begin, end = body.find(b"["), body.rfind(b"]") + 1
        if end - begin == len(arrays[0]):  # from the first bracket to the last: no other array is as long
            return body[:begin] + body[end:]
    return _cut(body, [bytes(array) for array in arrays])


def _cut(body: bytes, arrays: list[bytes]) -> bytes:
    """Cut out arrays from the left, as long as it is one of them that begins at the next bracket.

    Should that bracket be part of a string, what is cut out may begin and end inside strings. No name is lost then:
    what the body reads as strings there is what stands between an array's strings, which is no letter of a name but
    those of true, false and null.
    """
    pieces: list[bytes] = []
    at = 0
    begin = body.find(b"[")
    while begin >= 0:
        found = next((array for array in arrays if body.startswith(array, begin)), None)
        if found is None:
            break
        arrays.remove(found)
        pieces.append(body[at:begin])
        at = begin + len(found)
        begin = body.find(b"[", at)
    return b"".join((*pieces, body[at:])) if pieces else body


COMMON: Final = DuplicateGuard(FIELDS)
"""The guard of the fields that chat completions, completions and messages have in common."""

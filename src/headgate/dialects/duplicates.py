"""Does a JSON object name a field twice?

Every fast parser keeps the last of two equal keys, silently; an engine behind the gate may keep the first. Two
readings of one body are a way around a limit, so the few fields that limits hang on may appear once only.
"""

import json
import re

import msgspec
from msgspec import Raw

FIELDS = ("model", "stream", "max_tokens", "max_completion_tokens")

_NAMES = tuple(f'"{field}"'.encode() for field in FIELDS)
_QUOTED = re.compile(b'"(?:%b)"' % "|".join(FIELDS).encode())
# An escaped letter or underscore: no encoder writes one, but "mod\u0065l" is a second "model".
_ESCAPED_LETTER = re.compile(rb"\\u00(?:5[fF]|[64][1-9a-fA-F]|[75][0-9aA])")
_members = msgspec.json.Decoder(dict[str, Raw])


def find(body: bytes) -> str | None:
    """Return the guarded field that this valid JSON object names more than once, or None.

    A count of each quoted name decides nearly always; only bodies in which one of them stands twice (a tool
    with a parameter called "model") are looked at again.
    """
    if b"\\u00" in body and _ESCAPED_LETTER.search(body):
        return _find_slowly(body)
    for quoted in _NAMES:
        if body.count(quoted) > 1:
            return _look_again(body)
    return None


def _look_again(body: bytes) -> str | None:
    names = _QUOTED.findall(body)
    for name in set(names):
        if names.count(name) - _count_inside(body, name) > 1:
            return _find_slowly(body)
    return None


def _count_inside(body: bytes, name: bytes) -> int:
    """Count where the name stands inside the values of the object; values of lost duplicates are not seen."""
    return sum(bytes(value).count(name) for value in _members.decode(body).values())


def _find_slowly(body: bytes) -> str | None:
    """Parse with every key kept: twenty times slower, so only for bodies that no honest encoder writes."""
    try:
        top = json.loads(body, object_pairs_hook=list)
    except (ValueError, RecursionError):
        return FIELDS[0]  # the fast parser took it and this one does not: two readings, refuse
    keys = [key for key, _ in top]
    return next((field for field in FIELDS if keys.count(field) > 1), None)

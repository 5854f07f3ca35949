"""Bounds on arrays and objects in a body, checked without making their elements.

Decoded into a list, four megabytes of `1,1,1` become 140 before they can be counted. So they are left raw. One with
fewer commas than it may have elements is within its bound, whatever it holds. Only one with more (long texts have
commas too) is looked at again, by a decoder that gives up at the first element too many.
"""

import re
import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

FILLED: Final = re.compile(rb"\[\s*[^\]\s]")
"""How an array with something in it begins."""


class _Counting(threading.local):
    """How many elements may still come: decoders have no place of their own for such a number."""

    left = 0


_counting: Final = _Counting()


class _Object(msgspec.Struct, gc=False):
    """An object of which nothing is kept."""

    def __post_init__(self) -> None:
        _counting.left -= 1
        if _counting.left < 0:
            raise ValueError("too many elements")


_objects: Final = msgspec.json.Decoder(list[_Object])
_rows: Final = msgspec.json.Decoder(list[list[_Object]])
_list: Final = msgspec.json.Decoder(list[Raw])


def _may_exceed(array: Raw, most: int) -> bool:
    """Whether there may be more elements, by the commas; below 2 x `most` bytes there are too few for that."""
    return bytes(array).count(b",") >= most


def check_objects(array: Raw, least: int, most: int) -> None:
    """Raise msgspec.ValidationError unless this is an array of `least` (0 or 1) to `most` objects.

    One that is too short to hold more need not hold objects: that is the engine's to say.
    """
    if FILLED.match(array) is None:
        if len(_list.decode(array)) < least:
            raise msgspec.ValidationError(f"Expected `array` of length >= {least}")
    elif len(array) > 2 * most and _may_exceed(array, most):
        _counting.left = most
        _objects.decode(array)


def check_rows(array: Raw, most: int) -> None:
    """Raise msgspec.ValidationError for an array of arrays that hold more than `most` objects together."""
    if len(array) > 2 * most and _may_exceed(array, most):
        _counting.left = most
        _rows.decode(array)


def check_members(members: Raw, most: int) -> None:
    """Raise msgspec.ValidationError unless this is an object of at most `most` members that hold no objects."""
    text = bytes(members)
    if not text.startswith(b"{"):
        raise msgspec.ValidationError("Expected `object`")
    if text.count(b":") > most:
        raise msgspec.ValidationError(f"Expected `object` of length <= {most}")


class _Key:
    """A key of which nothing is kept: however many members an object has, it becomes a mapping of one."""


_KEY: Final = _Key()


def read_keys(members: bytes, note: Callable[[str], None]) -> None:
    """Show the keys of an object, as a parser reads them, without keeping any; what `note` raises comes as a ValidationError."""

    def hook(_kind: type, key: str) -> _Key:
        note(key)
        return _KEY

    msgspec.json.decode(members, type=dict[_Key, Raw], dec_hook=hook)


def check_keys(members: bytes, most: int) -> None:
    """Raise msgspec.ValidationError for an object of more than `most` members, whatever they hold."""
    left = most

    def note(_key: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError("too many members")

    read_keys(members, note)


class AtMost:
    """Arrays of at most `most` elements of one kind, a few thousand: read as records without names, which end early."""

    def __init__(self, kind: Any, most: int) -> None:
        self._kind = kind
        self._most = most
        self._list = msgspec.json.Decoder(list[kind])
        self._record: msgspec.json.Decoder[Any] | None = None

    def count(self, array: Raw) -> int:
        """Return how many elements there are; raise msgspec.ValidationError for too many, or one of another kind."""
        if _may_exceed(array, self._most):
            self._ending_early().decode(array)
        elements = len(self._list.decode(array))
        if elements > self._most:
            raise msgspec.ValidationError(f"Expected `array` of length <= {self._most}")
        return elements

    def _ending_early(self) -> msgspec.json.Decoder[Any]:
        """Return the decoder of records, made when a body first needs it: one of 2,048 fields is 1.1 MB and takes 6 ms."""
        if self._record is None:
            fields = [(f"element_{number}", self._kind, None) for number in range(self._most)]
            record = msgspec.defstruct("Elements", fields, array_like=True, forbid_unknown_fields=True)
            self._record = msgspec.json.Decoder(record)
        return self._record

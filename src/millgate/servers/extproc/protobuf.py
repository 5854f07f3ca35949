"""Protobuf messages by parts: the bytes of one field written alone, and where those of a field lie.

A reader merges parts of one message that follow each other
(https://protobuf.dev/programming-guides/encoding/#last-one-wins). So what is the same for many messages is written once.
"""

from typing import Any

Way = tuple[bytes, ...]
"""The tags of fields within each other, the outermost first."""


def way(message: Any, *names: str) -> Way:
    """Return the way to this field of a field of such a message; ValueError where one of them has a number above 15."""
    tags, kind = [], message.DESCRIPTOR
    for name in names:
        field = kind.fields_by_name[name]
        if field.number > 15:
            raise ValueError(f"{name} has the number {field.number}, whose tag has two bytes")
        tags.append(bytes([field.number << 3 | 2]))
        kind = field.message_type
    return tuple(tags)


def wrapped(data: bytes, tags: Way) -> bytes:
    """Return a message in which only the field at the end of this way is set, to `data`."""
    before = b""
    for tag in reversed(tags):
        before = tag + _written_length(len(before) + len(data)) + before
    return before + data


def written(message: Any) -> bytes:
    """Return the bytes of a message."""
    data: bytes = message.SerializeToString()
    return data


def extent(data: bytes, at: int) -> tuple[int, int]:
    """Return where a field begins and ends whose length stands here; IndexError where the data ends before it."""
    length = shift = 0
    while (byte := data[at]) > 127:
        length |= (byte & 127) << shift
        shift, at = shift + 7, at + 1
    return at + 1, at + 1 + (length | byte << shift)


def _written_length(length: int) -> bytes:
    if length < 128:
        return bytes([length])
    return bytes([length & 127 | 128]) + _written_length(length >> 7)

"""Heads that repeat: on one connection the next message mostly has the same head, but for the number of its body bytes.

A head that has been read and checked in full is kept with its connection, cut at the digits of its Content-Length.
The next head with the same bytes around other plain digits says the same about another length, so it need not be
parsed again. Whatever differs in any other byte is read the long way. Credentials in it live as long as the
connection on which they came, and no longer.
"""

from collections.abc import Sequence
from typing import Any, Final

from millgate.http1.wire.fields import Pair

_MOST_DIGITS: Final = 10
"""Ten digits name 10 GB, more than any body cap."""
_ZERO: Final = ord("0")
_NINE: Final = ord("9")


class Notes:
    """One thing that the reader of a head may keep with it: repeats of the head come with the same notes.

    They are no part of what the head says, so any two are equal.
    """

    def __init__(self) -> None:
        self.kept: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Notes)

    def __hash__(self) -> int:
        return 0


class Cut:
    """A head's bytes before and after the digits of its Content-Length, and which of its fields that is."""

    def __init__(self, before: bytes, after: bytes, position: int) -> None:
        self.before = before
        self.after = after
        self.position = position
        self._before_bytes = len(before)
        self._after_bytes = len(after)

    def match(self, data: bytes, begin: int) -> tuple[bytes, int] | None:
        """Return the digits and the end of the head if these bytes repeat it; None for anything else."""
        # By slices and single bytes: of searches that begin within their bytes each is a call, and takes longer than a copy.
        start = stop = begin + self._before_bytes
        if not (data[begin:start] == self.before if begin else data.startswith(self.before)):
            return None
        last = min(len(data), start + _MOST_DIGITS)
        while stop < last and _ZERO <= data[stop] <= _NINE:
            stop += 1
        end = stop + self._after_bytes
        return (data[start:stop], end) if stop > start and data[stop:end] == self.after else None


def cut_at_length(
    block: bytes, opening_bytes: int, lines: Sequence[bytes], fields: Sequence[Pair]
) -> Cut | None:
    """Cut a well-formed head (its first line has `opening_bytes`) at its Content-Length; None if it has not just one."""
    found = [position for position, (name, _value) in enumerate(fields) if name == b"content-length"]
    if len(found) != 1:
        return None
    position = found[0]
    start = opening_bytes + 2 + sum(map(len, lines[:position]), 0) + 2 * position
    stop = start + len(lines[position].rstrip(b" \t"))
    start = stop - len(fields[position][1])
    return Cut(block[:start], block[stop:], position)

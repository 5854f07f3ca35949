"""A program's requests differ in their messages: what stands around those is read once.

The frame of a body is what stands before its first bracket and behind its last. The messages may be all that lies
between. Then another body with the same frame is the same request with other messages, if what it has there
is one JSON array. A value of JSON may stand wherever another may. So an array is checked and nothing else is read.
"""

from typing import Any, Final

import msgspec
from msgspec import Raw

from millgate.dialects.arrays import FILLED
from millgate.dialects.contract import UNREADABLE

# Bounds of what is remembered (INV-5), half a megabyte at most. Beyond them all is forgotten: a dozen programs are many.
_MOST_FRAMES: Final = 256
_MOST_FRAME_BYTES: Final = 1024
_OPENING_BRACE: Final = ord("{")
_OPENING_BRACKET: Final = ord("[")
"""As numbers: looking for one takes a fifth as long as for bytes, which goes through an exception."""
_TYPE: Final = b'"type"'
_elements: Final = msgspec.json.Decoder(list[Raw]).decode


Frame = tuple[bytes, bytes, tuple[Any, ...], bool]
"""What stands before the messages, their first bracket included, and behind them, what it says, a plain tuple, which is
cut in C, and whether a type is named in it."""


class Frames:
    """What bodies with a known frame say, whatever their messages are; `most_bytes` bounds an array that is looked at."""

    def __init__(self, most_bytes: int) -> None:
        self._known: dict[bytes, Frame] = {}
        self._last: Frame | None = None
        self._most_bytes = most_bytes

    def find(self, body: bytes) -> tuple[tuple[Any, ...], int | None] | None:
        """Return what a body says (as RequestFacts do, but for what is measured), None unless its frame is known and its array is one.

        Beside it stands how many messages there are, None where one may have parts: those stand in an array of their own. Whether
        its strings are UTF-8 is not looked at.
        """
        frame = self._last
        if frame is None or not (body.startswith(frame[0]) and body.endswith(frame[1])):
            begin, end = body.find(b"[") + 1, body.rfind(b"]")
            if begin + len(body) - end > _MOST_FRAME_BYTES:
                return None
            frame = self._known.get(body[:begin] + body[end:])
            if frame is None:
                return None
            self._last = frame
        begin, end = len(frame[0]), len(body) - len(frame[1])
        if not begin < end <= begin + self._most_bytes:
            return None
        array = body[begin - 1 : end + 1]
        if body[begin] != _OPENING_BRACE and FILLED.match(array) is None:
            return None
        try:
            messages = len(_elements(array))
        except UNREADABLE:
            return None
        return frame[2], None if frame[3] or _OPENING_BRACKET in body[begin:end] else messages

    def keep(self, body: bytes, messages: Raw, facts: tuple[Any, ...]) -> None:
        """Remember the frame of a whole and right body, if its messages are all between its brackets."""
        begin, end = body.find(b"[") + 1, body.rfind(b"]")
        if end + 2 - begin != len(messages) or begin + len(body) - end > _MOST_FRAME_BYTES:
            return
        if len(self._known) >= _MOST_FRAMES:
            self._known.clear()
        before, behind = body[:begin], body[end:]
        types = before.find(_TYPE) >= 0 or behind.find(_TYPE) >= 0
        self._last = self._known[before + behind] = (before, behind, facts, types)

"""Server-sent events, split as they arrive.

A blank line ends an event; lines end in CR, LF or CRLF (WHATWG HTML, "Server-sent events"). The relay looks into
whole chunks first and comes here only for chunks that may matter, so clarity beats speed on this page.
"""

import re

DONE = b"[DONE]"
"""What ends a stream of OpenAI's, and alone is no answer."""
MOST_EVENT_BYTES = 8 * 1024 * 1024
"""One event may be this long: an image is up to 5 MB of base64, and the last event of a response has all that it made."""
_MOST_READ_BYTES = 1024 * 1024
"""So much of an event is read, images apart: long logprobs stay below 200 KB."""
# A string of a long event is an image from this length on, and so much of it is read. What comes after so many strings
# counts as one.
_IMAGE_BYTES, _HEAD_BYTES, _MOST_STRINGS = 262_144, 64, 65_536

MOST_EVENTS = 4_096
"""So many may come in one read, which brings 64 KiB at most: 16 bytes each, where an event with one letter has 100."""

_MOST_LINES = 16_384
"""So many data lines of an event are read; JSON comes in one, and pretty-printed in some hundred."""

# Atomic groups, or CRLF would be read as CR followed by LF: two line ends. More of them are part of the same blank.
_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)++")


class EventFloodError(ValueError):
    """An event grew beyond the bound without ending, or too many events came at once."""


class Splitter:
    """Cuts a byte stream into whole events, keeping the unfinished rest (at most `most_bytes`).

    The pieces, joined with `rest`, are the bytes that went in: nothing is added, dropped or normalised. A piece
    may consist of line ends alone.
    """

    def __init__(self, most_bytes: int = MOST_EVENT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._searched = 0
        self.rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that are whole now, terminators included."""
        rest = self.rest
        if not rest and data.endswith(b"\n\n") and data.find(b"\n") == len(data) - 2 and data.find(b"\r") < 0:
            return [data]  # the usual chunk is one event in one line
        rest += data
        pieces: list[bytes] = []
        start, searched = 0, self._searched
        if data.find(b"\n") < 0 and data.find(b"\r") < 0:
            searched = len(rest)  # so is most of a long event, which is not searched again
        while found := _BLANK_LINE.search(rest, searched):
            searched = found.end()
            pieces.append(bytes(rest[start:searched]))
            start = searched
            if len(pieces) > MOST_EVENTS:
                raise EventFloodError
        del rest[:start]
        # The longest terminator is four bytes: three of them may already be here.
        self._searched = max(0, len(rest) - 3)
        if len(rest) > self._most_bytes:
            raise EventFloodError
        return pieces


def payload(event: bytes) -> bytes:
    """Return the joined data lines of one event, empty for comments and blanks; of an image in a long one its head."""
    if len(event) > _MOST_READ_BYTES:
        between_quotes = event.split(b'"', _MOST_STRINGS)
        event = b'"'.join(
            [part if len(part) < _IMAGE_BYTES else part[:_HEAD_BYTES] for part in between_quotes]
        )
        event = event[:_MOST_READ_BYTES]  # what cannot be read counts as content
    if event.startswith(b"data:") and event.find(b"\n", 0, -2) < 0 and event.find(b"\r") < 0:
        return event[5:].strip()
    if event.find(b"\r") >= 0:
        event = event.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    _before, *fields = (b"\n" + event).split(b"\ndata:", _MOST_LINES)
    return b"\n".join([field.partition(b"\n")[0].removeprefix(b" ") for field in fields]).strip()

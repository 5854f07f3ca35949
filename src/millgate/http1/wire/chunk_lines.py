"""One event of a stream is one chunk: its length line is looked up, not written and compared, both ways.

The usual chunks of both sides pass here; whatever is written otherwise (upper case, extensions, more than one chunk in a
read) is the parser's.
"""

from typing import Final

_MOST_DIGITS: Final = 5
"""A chunk of up to 1 MiB may be one event."""
_READY: Final = 4096
"""Events of models are some hundred bytes; lines for longer ones are made when they come."""


def _line_within(chunk_bytes: int) -> bytes:
    """Return the length line of a chunk that has so many bytes with its framing, empty where none has."""
    for digits in range(1, _MOST_DIGITS + 1):
        size_bytes = chunk_bytes - digits - 4
        if size_bytes <= 0:
            return b""
        line = b"%x\r\n" % size_bytes
        if len(line) == digits + 2:
            return line
    return b""


_LINES: Final = [b"%x\r\n" % size for size in range(_READY)]
_LINES_WITHIN: Final = [_line_within(size) for size in range(_READY)]


def as_chunk(data: bytes) -> bytes:
    """Return these bytes, which are not empty, as one chunk."""
    size_bytes = len(data)
    line = _LINES[size_bytes] if size_bytes < _READY else b"%x\r\n" % size_bytes
    return line + data + b"\r\n"


def of_chunk(chunk: bytes) -> bytes | None:
    """Return the data of one whole chunk whose length is written the usual way; None for anything else."""
    chunk_bytes = len(chunk)
    line = _LINES_WITHIN[chunk_bytes] if chunk_bytes < _READY else _line_within(chunk_bytes)
    if line and chunk.startswith(line) and chunk.endswith(b"\r\n"):
        return chunk[len(line) : -2]
    return None

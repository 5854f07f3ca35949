"""Events of the process - started, reloaded, draining - one line each to stderr, never in the way of the loop.

A line is handed to a thread that writes it. A full disk, a closed pipe or a reader that has stopped costs lines,
which are counted, and never a request. Nothing that a client or an engine sent is ever an argument here: no bodies,
no keys, no names that clients chose.
"""

import json
import os
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Final

from millgate.observe.line_writer import LineWriter

Fields = Mapping[str, object]
"""What belongs to an event, by name, in the order in which it is told."""

MOST_WAITING_LINES: Final = 1024
"""Lines between the loop and a slow reader; at some hundred bytes each they hold 0.2 MB."""
_STDERR: Final = 2
_MOST_FRAMES: Final = 8


@cache
def stderr_writer() -> LineWriter:
    """Return the one writer of this process's stderr: the lines of all who speak there keep their order."""
    return LineWriter(_STDERR, MOST_WAITING_LINES)


class ProcessLog:
    """Writes lines to a file descriptor: JSON for machines, or plain words for a terminal; `always` stands in each."""

    def __init__(self, descriptor: int = _STDERR, *, plain: bool | None = None, **always: object) -> None:
        is_shared = descriptor == _STDERR
        self._lines = stderr_writer() if is_shared else LineWriter(descriptor, MOST_WAITING_LINES)
        self._always = always
        as_words = os.isatty(descriptor) if plain is None else plain
        self._render: Callable[[str, str, Fields], str] = _in_words if as_words else json_line

    @property
    def dropped(self) -> int:
        """How many lines could not be written."""
        return self._lines.dropped

    def info(self, event: str, **fields: object) -> None:
        """Say what the process does."""
        self._say("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Report what an operator should look at."""
        self._say("warning", event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Say what has gone wrong."""
        self._say("error", event, fields)

    def close(self) -> None:
        """Return when what waits is written or lost, within about a second."""
        self._lines.flush()

    def _say(self, level: str, event: str, fields: Fields) -> None:
        self._lines.add(self._render(level, event, {**self._always, **fields}).encode() + b"\n", 1)


def json_line(level: str, event: str, fields: Fields) -> str:
    """Return one line of ASCII with the event, its level and the time (UTC); what JSON does not know stands as its text."""
    at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return json.dumps({**fields, "event": event, "level": level, "timestamp": at}, default=str)


def _in_words(level: str, event: str, fields: Fields) -> str:
    """Render `millgate: event (name value, ...)`; JSON's escapes keep control characters off the terminal."""
    details = ", ".join(f"{name} {json.dumps(str(value))[1:-1]}" for name, value in fields.items())
    return f"millgate: {'' if level == 'info' else level + ': '}{event}{f' ({details})' if details else ''}"


def places(error: BaseException) -> list[str]:
    """Return the innermost frames of a failure, at most eight, as `file:line function`.

    Its text is left out: it may quote what a client sent.
    """
    frames = traceback.extract_tb(error.__traceback__)[-_MOST_FRAMES:]
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]

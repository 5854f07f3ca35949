"""What clients and engines do wrong, told to the log of the process: one line of a kind a minute, however many there are.

A flood of garbage must not become a flood of lines. The kinds are the door's closed list of codes and the names of
engines; nothing that anybody sent is in a line.
"""

from collections.abc import Callable
from math import inf
from typing import Final, Protocol

QUIET_S: Final = 60.0
"""After a line of a kind: long enough that a day of port scans is a page, short enough to see that it goes on."""
MOST_KINDS: Final = 256


class WarningLog(Protocol):
    """Where the lines go."""

    def warning(self, event: str, **fields: object) -> None:
        """Say what somebody should look at."""


class Notices:
    """Writes the first of a kind at once, and with the next one after `QUIET_S` how many there were since.

    `time` is the clock, in seconds. At most `MOST_KINDS` are known apart (INV-5); the longest known is forgotten first.
    """

    def __init__(self, log: WarningLog, time: Callable[[], float]) -> None:
        self._log = log
        self._time = time
        self._last: dict[tuple[str, str], tuple[float, int]] = {}

    def bad_request(self, code: str) -> None:
        """Somebody sent what is no request, too much, or too slowly."""
        self._tell("bad requests", "code", code)

    def unusable_usage(self, engine: str) -> None:
        """An engine did not say how many tokens an answer took, or said nonsense."""
        self._tell("answers without usable usage", "engine", engine)

    def _tell(self, event: str, name: str, value: str) -> None:
        kind, now = (event, value), self._time()
        told_at, silent = self._last.get(kind, (-inf, 0))
        if now - told_at < QUIET_S:
            self._last[kind] = told_at, silent + 1
            return
        self._last.pop(kind, None)
        if len(self._last) >= MOST_KINDS:
            del self._last[next(iter(self._last))]
        self._last[kind] = now, 0
        self._log.warning(event, **{name: value}, count=silent + 1)

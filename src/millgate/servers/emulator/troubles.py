"""Troubles that the embedded engine is asked to have: failures, stalls, errors within streams. Dice with a seed.

Every request is drawn for once, in the order in which requests come. So the same requests in the same order meet
the same troubles, whatever the machine does meanwhile.
"""

from enum import StrEnum
from random import Random

import msgspec

from millgate.servers.emulator.answers import DONE, error_body
from millgate.servers.emulator.requests import Surface
from millgate.servers.emulator.settings import EmulatorSettings

FAILED = "The engine was told to fail this request."


class Trouble(StrEnum):
    """What befalls one request, at most one thing; the last two take place when half of its tokens are sent."""

    FAIL = "failed"
    STALL = "stalled"
    ERROR_EVENT = "broken"


class Troubles:
    """Draws for requests and counts what was drawn."""

    def __init__(self, settings: EmulatorSettings) -> None:
        self._rates = (
            (Trouble.FAIL, settings.fail_rate),
            (Trouble.STALL, settings.stall_rate),
            (Trouble.ERROR_EVENT, settings.error_rate),
        )
        # Dice of their own: lengths of answers stay what they are without troubles.
        self._dice = Random(f"troubles {settings.seed}")  # noqa: S311 - no secret
        self.counts = dict.fromkeys(Trouble, 0)

    def draw(self, *, stream: bool) -> Trouble | None:
        """Return what befalls the next request; an answer in one piece can only fail."""
        left = self._dice.random()
        for trouble, rate in self._rates:
            if left < rate:
                if trouble is not Trouble.FAIL and not stream:
                    return None
                self.counts[trouble] += 1
                return trouble
            left -= rate
        return None


BROKEN_OFF = "The engine was told to break this stream off."


def error_event(surface: Surface, message: str = BROKEN_OFF) -> bytes:
    """Return what ends a stream that an engine breaks off: vLLM's error event and `[DONE]`, or a named event."""
    if surface in {Surface.CHAT, Surface.COMPLETION}:
        return b"data: %s\n\n%s" % (error_body(500, message, "InternalServerError"), DONE)
    error = {"type": "error", "error": {"type": "api_error", "message": message}}
    return b"event: error\ndata: %s\n\n" % msgspec.json.encode(error)

"""How far is an engine with the prompts that it was given, and how fast does it read?

An engine says when a prompt has been read, by its first token, and nothing in between. If a prompt counted as unread until
then, a request that comes just before the end of a long one would seem to wait for all of it. So between two first tokens
the engine is taken to go on reading at the speed that it has shown: tokens over the time in which there was something to read.
"""

from typing import Final

from millgate.core.measure import UPPER_Z
from millgate.core.measure.ewma import Ewma
from millgate.core.sizing import MEMORY_ANSWERS, USUAL_PROMPT_TOKENS

# One stalled prompt is no more than twice as late as foreseen here, or no request would be admitted for a long time.
_LARGEST_ERROR: Final = 1.0


class PromptReading:
    """The reading of one engine, told what begins and what has been read; seconds and prompt tokens.

    `per_token_s` is what is believed before anything was read.
    """

    __slots__ = ("_error", "_from_rest", "_read_at", "_time_s", "_tokens")

    def __init__(self, per_token_s: float, now: float) -> None:
        self._tokens = float(USUAL_PROMPT_TOKENS)
        self._time_s = USUAL_PROMPT_TOKENS * per_token_s
        self._read_at = now
        self._from_rest = True
        self._error = Ewma(0.0, memory=MEMORY_ANSWERS)

    @property
    def per_token_s(self) -> float:
        """How long the engine takes for one prompt token of many."""
        return self._time_s / self._tokens

    @property
    def upper_share(self) -> float:
        """How much longer than predicted a first token takes nine times in ten, as a share of the prediction."""
        return UPPER_Z * self._error.deviation

    def began(self, now: float) -> None:
        """There is something to read again; an engine that has read its last prompt just now goes on."""
        self._from_rest = now > self._read_at
        self._read_at = now

    def read(self, prompt_tokens: int, base_s: float, now: float) -> None:
        """Learn from a prompt that has been read; `base_s` is what a first token takes beside reading."""
        busy_s = now - self._read_at
        if self._from_rest:
            busy_s = max(0.0, busy_s - base_s)
        fade = 1.0 - 1.0 / MEMORY_ANSWERS
        self._tokens = self._tokens * fade + prompt_tokens
        self._time_s = self._time_s * fade + busy_s
        self._from_rest = False
        self._read_at = now

    def interrupted(self, now: float) -> None:
        """A prompt is no longer to be read, and how much of it was read is unknown."""
        self._from_rest = True
        self._read_at = now

    def erred(self, predicted_s: float, took_s: float) -> None:
        """Compare one predicted time to first token with what came."""
        if predicted_s > 0.0:
            self._error.add(min(_LARGEST_ERROR, took_s / predicted_s - 1.0))

    def unread(self, given_tokens: int, now: float) -> float:
        """Return how many of these tokens, of prompts without a first token, the engine has still to read.

        What is late by so long is expected to be late by as much again, up to all of them (the doubling rule, as for
        answers in `state.capacity_forecast`).
        """
        whole_s = given_tokens * self.per_token_s
        if whole_s <= 0.0:
            return given_tokens
        return given_tokens * min(1.0, abs(1.0 - (now - self._read_at) / whole_s))

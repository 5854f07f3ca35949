"""How long will one engine take: how fast it reads and writes, how far it is with the prompts that it has, how long permits last.

TTFT = a + b x uncached prompt tokens; TPOT = c + d x running streams (the linear parts of the step-time models in `engine/profile`;
the attention terms are small against what queueing adds). Both lines start at the prior of the engine's profile and are learned
from what is served, per engine.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from typing import Final

from millgate.core.measure import UPPER_Z
from millgate.core.measure.ewma import LEAST_ENDED, MEMORY, Ewma, LearnedLine, lifetimes, say_enough
from millgate.core.settings import ServicePrior
from millgate.core.sizing import USUAL_PROMPT_TOKENS

# One stalled prompt is no more than twice as late as foreseen here, or no request would be admitted for a long time.
_LARGEST_ERROR: Final = 1.0


class PromptReading:
    """The reading of one engine, told what begins and what has been read; seconds and prompt tokens.

    An engine says by a first token when a prompt has been read, and nothing in between. Between two it is taken to go on at the
    speed that it has shown: tokens over the time in which there was something to read; `per_token_s` before anything was.
    """

    __slots__ = ("_error", "_from_rest", "_read_at", "_time_s", "_tokens")

    def __init__(self, per_token_s: float, now: float) -> None:
        self._tokens = float(USUAL_PROMPT_TOKENS)
        self._time_s = USUAL_PROMPT_TOKENS * per_token_s
        self._read_at = now
        self._from_rest = True
        self._error = Ewma(0.0)

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
        fade = 1.0 - 1.0 / MEMORY
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


class PermitTimes:
    """The last permits, each by its time over the time that was foreseen for it.

    A permit that has run for the mean of uneven lengths is not about to end. What remains of one is read off those that lasted
    longer than it has so far (the empirical residual life: Kaplan and Meier 1958). The first to end are the short ones, so
    until enough have ended those that run count as well.
    `has_news` says whether those that run should be told (`look`): one has ended since, and few have so far.
    """

    __slots__ = ("_is_young", "_last", "_lives", "_sorted", "has_news")

    def __init__(self) -> None:
        self._last: deque[float] = deque()
        self._sorted: list[float] = []
        self._lives: list[float] = []
        self._is_young = True
        self.has_news = False

    def lasted(self, stayed_s: float, foreseen_s: float) -> None:
        """Learn from one permit that has ended."""
        if foreseen_s <= 0.0:
            return
        share = stayed_s / foreseen_s
        self._last.append(share)
        insort(self._sorted, share)
        self.has_news = self._is_young
        if len(self._last) > MEMORY:
            del self._sorted[bisect_left(self._sorted, self._last.popleft())]

    def look(self, running: list[float]) -> None:
        """Correct what the first permits say by these, which run and have lasted so long so far."""
        ended = self._sorted
        self.has_news = False
        self._is_young = len(ended) < MEMORY and not say_enough(len(ended), len(running))
        has_lives = self._is_young and len(ended) >= LEAST_ENDED
        self._lives = lifetimes(ended, sorted(running)) if has_lives else []

    def share_at(self, share: float, level: float) -> float:
        """Return how long a permit lasts that has lasted `share` so far, at this level (0 to 1) of those that lasted longer.

        All are shares of what was foreseen. 1 before anything was learned, and at most `share` if none lasted longer.
        """
        known = self._lives or self._sorted
        if not known:
            return 1.0
        first, last = bisect_right(known, share), len(known) - 1
        at = min(max(float(first), first + level * (len(known) - first) - 0.5), float(last))
        low = int(at)
        return known[low] + (at - low) * (known[min(low + 1, last)] - known[low])


# A usual batch: here lies the pseudo-observation of the prior.
_USUAL_STREAMS: Final = 16.0


class ServiceTime:
    """The learned speed of one engine, from so many `answers`; times are seconds."""

    __slots__ = ("_decode_s", "_own_s", "_read_tokens", "_tpot", "_ttft", "answers")

    def __init__(self, prior: ServicePrior) -> None:
        self._ttft = LearnedLine(prior.ttft_base_s, prior.ttft_per_token_s, typical_x=USUAL_PROMPT_TOKENS)
        self._tpot = LearnedLine(prior.tpot_base_s, prior.tpot_per_stream_s, typical_x=_USUAL_STREAMS)
        self._decode_s = self._own_s = 0.0
        self._read_tokens = 0
        self.answers = 0

    def answered(self) -> None:
        """Count a whole answer."""
        self.answers += 1

    def ttft_s(self, prompt_tokens: float) -> float:
        """Return the predicted time to first token for so many uncached prompt tokens, own and ahead."""
        return self._ttft.at(prompt_tokens)

    def reading_s(self, prompt_tokens: float) -> float:
        """Return how long the engine reads so many prompt tokens, without what comes before and after."""
        return self._ttft.slope * prompt_tokens

    def tpot_s(self, streams: float) -> float:
        """Return the predicted time per output token with so many streams running."""
        return self._tpot.at(streams)

    def service_s(self, prompt_tokens: float, output_tokens: float, streams: float) -> float:
        """Return the predicted time from permit to last token."""
        return self._ttft.at(prompt_tokens) + max(0.0, output_tokens - 1.0) * self._tpot.at(streams)

    def read_behind_s(self, prompt_tokens: float, read_streams: float, streams: float) -> float:
        """Return how much longer a permit for what is only read is out, as its prompt is behind all that are being read.

        Of so many `streams`, all of them; `read_streams` is how many a permit has, 0 where answers are written: there
        few prompts are unread at any time. Counted for each of its streams.
        """
        if not read_streams:
            return 0.0
        behind_tokens = min(1.0, read_streams) * max(0.0, streams - 1.0) * prompt_tokens
        return max(0.0, read_streams - 1.0) * self._ttft.base + self._ttft.slope * behind_tokens

    def engine_s(self, prompt_tokens: float, output_tokens: float, streams: float) -> float:
        """Return the part of the engine's own time that this takes while so many streams share it, in seconds.

        per_token x prompt + output x step / streams, a step being TPOT without the prompts that were read meanwhile. A
        token of an answer takes no less than one of a prompt: both go through the same weights (Kaplan et al. 2020).
        """
        per_token_s = self._ttft.slope
        shared_s = self.own_share() * self._tpot.at(streams) / max(1.0, streams)
        return per_token_s * prompt_tokens + output_tokens * max(per_token_s, shared_s)

    def own_share(self) -> float:
        """Return the part of the time per output token that is not the reading of others' prompts, in [0, 1]."""
        if self._decode_s <= 0.0:
            return 1.0
        return min(max(0.0, self._own_s / self._decode_s), 1.0)

    def learn_ttft(self, prompt_tokens: float, ttft_s: float) -> None:
        """Learn one time to first token; `prompt_tokens` counts what had to be prefilled before it as well."""
        if ttft_s > 0.0:
            self._ttft.add(prompt_tokens, ttft_s)

    def learn_tpot(self, streams: float, tpot_s: float) -> None:
        """Learn one answer's mean time per output token."""
        if tpot_s > 0.0:
            self._tpot.add(streams, tpot_s)

    def has_read(self, prompt_tokens: int) -> int:
        """Count a prompt that has been read; return how many prompt tokens that makes, ever."""
        self._read_tokens += prompt_tokens
        return self._read_tokens

    def learn_own_share(self, decode_s: float, read_before: int) -> None:
        """Learn what of an answer's decoding time was its own; `read_before` is what `has_read` gave when it began."""
        keep = 1.0 - 1.0 / MEMORY
        others_s = self.reading_s(self._read_tokens - read_before)
        self._decode_s = self._decode_s * keep + decode_s
        self._own_s = self._own_s * keep + decode_s - others_s

"""What a request asks of an engine: its prompt in tokens, and the time that an engine takes for them.

Doors that see the text of a prompt tell its shape, and each model has a line over it, learned from the usage that engines report:

    tokens = own + a x messages + b x bytes of tools + c x letters + d x spaces + e x digits + f x signs + g x bytes beyond ASCII
             + h x tokens of what is no text

Of other arrivals only bytes are known: the ratio of a model and its users is stable (English prose is near 4 bytes a token, code
and CJK lie lower). Tokens that do not come from text (the parts of an image, of a recording) are counted by the caller.

How fast an engine reads and writes, how far it is with the prompts that it has, and how long permits last, is learned
per engine. TTFT = a + b x uncached prompt tokens. TPOT = c + d x running streams (the linear parts of the step-time
models in `engine/profile`; the attention terms are small against what queueing adds). Both lines start at the prior of
the engine's profile.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterator
from math import sqrt
from typing import Final

from millgate.core.events import PromptShape
from millgate.core.measure import ALIKE, ENOUGH, MEMORY, UPPER_Z, Ewma, LearnedLine
from millgate.core.settings import ServicePrior
from millgate.core.sizing import MOST_NAMES, USUAL_PROMPT_TOKENS
from millgate.core.sizing.output_length import EstimateError
from millgate.core.snapshot import ErrorReading


class _Terms:
    """One number for each term of a line. Compiled code keeps a named number as it is, and one of a list as an object.

    In lists, learning took 46,000 instructions an answer, a sixth of a whole JSON request; here it takes 4,000.
    """

    def __init__(
        self,
        own: float,
        messages: float,
        tools: float,
        letters: float,
        spaces: float,
        digits: float,
        signs: float,
        beyond: float,
        media: float,
    ) -> None:
        self.own, self.messages, self.tools = own, messages, tools
        self.letters, self.spaces, self.digits = letters, spaces, digits
        self.signs, self.beyond, self.media = signs, beyond, media

    def become(self, shape: PromptShape, fixed_tokens: int) -> None:
        messages, tools, letters, spaces, digits, signs, beyond = shape
        self.own, self.messages, self.tools = 1.0, float(messages), float(tools)
        self.letters, self.spaces, self.digits = float(letters), float(spaces), float(digits)
        self.signs, self.beyond, self.media = float(signs), float(beyond), float(fixed_tokens)

    def dot(self, other: "_Terms") -> float:
        return (
            self.own * other.own
            + self.messages * other.messages
            + self.tools * other.tools
            + self.letters * other.letters
            + self.spaces * other.spaces
            + self.digits * other.digits
            + self.signs * other.signs
            + self.beyond * other.beyond
            + self.media * other.media
        )

    def add(self, part: float, other: "_Terms") -> None:
        """Add so many times the other; texts without tools, or in English alone, teach nothing of those terms."""
        if part == 0.0:
            return
        self.own += part * other.own
        self.messages += part * other.messages
        self.tools += part * other.tools
        self.letters += part * other.letters
        self.spaces += part * other.spaces
        self.digits += part * other.digits
        self.signs += part * other.signs
        self.beyond += part * other.beyond
        self.media += part * other.media


# Tokens per unit before anything is known, and how far each may be off: English prose has four letters a token. A message of
# JSON has some twenty letters and signs that no template writes.
_PRIOR: Final[tuple[float, ...]] = (5.0, -4.0, 0.25, 0.2, 0.1, 0.4, 0.4, 0.5, 1.0)
_DOUBT: Final[tuple[float, ...]] = (20.0, 8.0, 0.1, 0.1, 0.4, 0.3, 0.4, 0.3, 0.7)
# What an estimate is off by, beside a tenth of the prompt: so many tokens.
_NOISE_TOKENS: Final = 10.0
_MOST_DEVIATIONS: Final = 3.0
# Each answer gives back this part of the prior's variance: what is known is that of some hundred answers.
_FADE: Final = 1e-4
# A token in a kilobyte at least, whatever the line says of a text like none before; lines of dashes have one in a hundred bytes.
_LEAST_TOKENS_SHIFT: Final = 10


def _terms_of(values: list[float]) -> _Terms:
    own, messages, tools, letters, spaces, digits, signs, beyond, media = values
    return _Terms(own, messages, tools, letters, spaces, digits, signs, beyond, media)


_PRIOR_VARIANCES: Final = _terms_of([doubt * doubt for doubt in _DOUBT])


class _Covariance:
    """What is in doubt of each coefficient, and how much of that it shares with each other one; named as the terms are."""

    def __init__(self) -> None:
        self.own = _only(0)
        self.messages = _only(1)
        self.tools = _only(2)
        self.letters = _only(3)
        self.spaces = _only(4)
        self.digits = _only(5)
        self.signs = _only(6)
        self.beyond = _only(7)
        self.media = _only(8)

    def multiply(self, terms: _Terms, product: _Terms) -> None:
        """Make of `product` what is in doubt of a prompt of these terms, by the coefficients that share it."""
        product.own, product.messages = self.own.dot(terms), self.messages.dot(terms)
        product.tools, product.letters = self.tools.dot(terms), self.letters.dot(terms)
        product.spaces, product.digits = self.spaces.dot(terms), self.digits.dot(terms)
        product.signs, product.beyond = self.signs.dot(terms), self.beyond.dot(terms)
        product.media = self.media.dot(terms)

    def reduce(self, doubts: _Terms, variance: float) -> None:
        """Take what was learned off each row, and let what is known of its coefficient fade."""
        self.own.add(-doubts.own / variance, doubts)
        self.messages.add(-doubts.messages / variance, doubts)
        self.tools.add(-doubts.tools / variance, doubts)
        self.letters.add(-doubts.letters / variance, doubts)
        self.spaces.add(-doubts.spaces / variance, doubts)
        self.digits.add(-doubts.digits / variance, doubts)
        self.signs.add(-doubts.signs / variance, doubts)
        self.beyond.add(-doubts.beyond / variance, doubts)
        self.media.add(-doubts.media / variance, doubts)
        self.own.own += _faded(self.own.own, _PRIOR_VARIANCES.own)
        self.messages.messages += _faded(self.messages.messages, _PRIOR_VARIANCES.messages)
        self.tools.tools += _faded(self.tools.tools, _PRIOR_VARIANCES.tools)
        self.letters.letters += _faded(self.letters.letters, _PRIOR_VARIANCES.letters)
        self.spaces.spaces += _faded(self.spaces.spaces, _PRIOR_VARIANCES.spaces)
        self.digits.digits += _faded(self.digits.digits, _PRIOR_VARIANCES.digits)
        self.signs.signs += _faded(self.signs.signs, _PRIOR_VARIANCES.signs)
        self.beyond.beyond += _faded(self.beyond.beyond, _PRIOR_VARIANCES.beyond)
        self.media.media += _faded(self.media.media, _PRIOR_VARIANCES.media)


def _only(place: int) -> _Terms:
    """Return nothing but the prior's variance of the term at this place."""
    return _terms_of([doubt * doubt if place == other else 0.0 for other, doubt in enumerate(_DOUBT)])


def _faded(variance: float, prior: float) -> float:
    """Return by how much what is in doubt of a coefficient grows with each answer; never beyond the prior's."""
    return min(max(prior, variance), variance + _FADE * prior) - variance


# Bytes a token before anything is known: the common rule of thumb for English text.
PRIOR_BYTES_PER_TOKEN: Final = 4.0
# The prior counts as this many tokens: more than a first greeting has, less than a first real prompt.
_PRIOR_TOKENS: Final = 200.0


class PromptLine:
    """The coefficients of one model, 1 kB, and what is in doubt of them: recursive least squares (Plackett, 1950).

    What is off is taken to be a tenth of the prompt, so that short prompts teach as much as long ones, and a prompt that is off
    by more than three of that teaches no more than one that is off by three (Huber, 1964). What is known of each coefficient
    fades slowly, never beyond the prior's doubt. Of arrivals without a shape the ratio of bytes to tokens is all that is known.
    """

    def __init__(self) -> None:
        self._weights = _terms_of([*_PRIOR])
        self._covariance = _Covariance()
        # Of the prompt that is asked about; kept, as two such records for each request cost 1,200 instructions.
        self._terms, self._doubts = _terms_of([*_PRIOR]), _terms_of([*_PRIOR])
        self._bytes, self._tokens = _PRIOR_TOKENS * PRIOR_BYTES_PER_TOKEN, _PRIOR_TOKENS

    @property
    def bytes_per_token(self) -> float:
        """The ratio of text to its tokens."""
        return self._bytes / self._tokens

    def tokens(self, shape: PromptShape, fixed_tokens: int) -> int:
        """Return the estimated prompt tokens, at least one in 1,024 bytes."""
        messages, tools, letters, spaces, digits, signs, beyond = shape
        size_bytes = messages + tools + letters + spaces + digits + signs + beyond
        least = (size_bytes >> _LEAST_TOKENS_SHIFT) + 1
        self._terms.become(shape, fixed_tokens)
        return max(least, int(self._weights.dot(self._terms) + 0.5))

    def learn_ratio(self, text_bytes: int, text_tokens: int) -> None:
        """Learn from one answer's usage how many bytes a token has.

        Half is forgotten after so many usual prompts: a change of traffic shows soon, and pings by the hundred, each with more
        template than text, change nothing for the prompts of others.
        """
        if self._tokens > MEMORY * USUAL_PROMPT_TOKENS:
            self._bytes *= 0.5
            self._tokens *= 0.5
        self._bytes += text_bytes
        self._tokens += text_tokens

    def learn(self, shape: PromptShape, fixed_tokens: int, prompt_tokens: int) -> None:
        """Learn from one answer's usage what each kind of character has."""
        terms, doubts, share = self._terms, self._doubts, ALIKE * prompt_tokens
        terms.become(shape, fixed_tokens)
        self._covariance.multiply(terms, doubts)
        variance = share * share + _NOISE_TOKENS * _NOISE_TOKENS + doubts.dot(terms)
        off = prompt_tokens - self._weights.dot(terms)
        most = _MOST_DEVIATIONS * sqrt(variance)
        self._weights.add(max(-most, min(most, off)) / variance, doubts)
        self._covariance.reduce(doubts, variance)


class PromptSizes:
    """How many tokens a prompt has, by its model; beyond a bound new models share one estimate."""

    def __init__(self) -> None:
        self._untaught = PromptLine()
        self._lines: dict[str, PromptLine] = {}
        self._error = EstimateError()

    def tokens(
        self, model: str, prompt_bytes: int, fixed_tokens: int = 0, shape: PromptShape | None = None
    ) -> int:
        """Return the estimated prompt tokens, at least 1; `prompt_bytes` is text, `fixed_tokens` are beside it."""
        line = self._lines.get(model) or self._lines.get("") or self._untaught
        if shape is not None:
            return line.tokens(shape, fixed_tokens)
        return fixed_tokens + round(prompt_bytes / line.bytes_per_token) or 1

    def learn(
        self,
        model: str,
        prompt_bytes: int,
        prompt_tokens: int,
        fixed_tokens: int = 0,
        shape: PromptShape | None = None,
    ) -> None:
        """Learn from one answer's usage; `prompt_tokens` is the whole, `fixed_tokens` as they were estimated."""
        if prompt_tokens <= 0 or prompt_bytes <= 0:
            return
        name = "" if model not in self._lines and len(self._lines) >= MOST_NAMES else model
        line = self._lines.get(name) or self._lines.setdefault(name, PromptLine())
        if prompt_tokens > fixed_tokens:
            line.learn_ratio(prompt_bytes, prompt_tokens - fixed_tokens)
        if shape is not None:
            line.learn(shape, fixed_tokens, prompt_tokens)

    def erred(self, expected_tokens: int, prompt_tokens: int) -> None:
        """Compare what was estimated of one prompt when its request came with what it was."""
        self._error.add(expected_tokens, prompt_tokens)

    def ratios(self) -> Iterator[tuple[str, float]]:
        """Yield every known model with its bytes per token."""
        return ((model, line.bytes_per_token) for model, line in self._lines.items())

    def error(self) -> ErrorReading:
        """Return how wrong the estimates have been, lately and over all models."""
        return self._error.read()


# One stalled prompt is no more than twice as late as foreseen here, or no request would be admitted for a long time.
_LARGEST_ERROR: Final = 1.0


class PromptReading:
    """The reading of one engine, told what begins and what has been read; seconds and prompt tokens.

    An engine says by a first token when a prompt has been read, and nothing in between. Between two it is taken to go on at the
    speed that it has shown: tokens over the time in which there was something to read; `per_token_s` before anything was.
    """

    def __init__(self, per_token_s: float, now: float) -> None:
        self._tokens, self._seen_tokens = float(USUAL_PROMPT_TOKENS), 0.0
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

    @property
    def is_guessed(self) -> bool:
        """Whether of hardly any prompt that it remembers it was seen when it had been read."""
        return ENOUGH * self._seen_tokens < self._tokens

    def began(self, now: float) -> None:
        """There is something to read again; an engine that has read its last prompt just now goes on."""
        self._from_rest = now > self._read_at
        self._read_at = now

    def read(self, prompt_tokens: int, base_s: float, now: float) -> None:
        """Learn from a prompt that has been read; `base_s` is what a first token takes beside reading."""
        busy_s = now - self._read_at
        if self._from_rest:
            busy_s = max(0.0, busy_s - base_s)
        self.took(prompt_tokens, busy_s)
        self._seen_tokens += prompt_tokens
        self._from_rest = False
        self._read_at = now

    def took(self, prompt_tokens: float, reading_s: float) -> None:
        """Learn that so many tokens took so long to read, as far as is known."""
        fade = 1.0 - 1.0 / MEMORY
        self._seen_tokens *= fade
        self._tokens = self._tokens * fade + prompt_tokens
        self._time_s = self._time_s * fade + reading_s

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
    longer than it has so far (the empirical residual life: Kaplan and Meier 1958).
    """

    def __init__(self) -> None:
        self._last: deque[float] = deque()
        self._sorted: list[float] = []
        self._noted: deque[float] = deque(maxlen=int(MEMORY))

    def lasted(self, stayed_s: float, foreseen_s: float) -> None:
        """Learn from one permit that has ended. It is only noted: a gate that refuses nothing never asks."""
        if foreseen_s > 0.0:
            self._noted.append(stayed_s / foreseen_s)

    def share_at(self, share: float, level: float) -> float:
        """Return how long a permit lasts that has lasted `share` so far, at this level (0 to 1) of those that lasted longer.

        All are shares of what was foreseen. 1 before anything was learned, and at most `share` if none lasted longer.
        """
        known = self._sorted
        while self._noted:
            noted = self._noted.popleft()
            self._last.append(noted)
            insort(known, noted)
            if len(self._last) > MEMORY:
                del known[bisect_left(known, self._last.popleft())]
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
        return min(max(0.0, self._own_s / self._decode_s), 1.0) if self._decode_s > 0.0 else 1.0

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

"""How long will one engine take: prefill by prompt, decode by load.

TTFT = a + b x uncached prompt tokens; TPOT = c + d x running streams (the linear parts of the step-time models
in `engine/profile`; the attention terms are small against what queueing adds). Both lines start at the prior of
the engine's profile and are learned from what is served, per engine.
"""

from typing import Final

from millgate.core.measure.line import LearnedLine
from millgate.core.settings import ServicePrior
from millgate.core.sizing import MEMORY_ANSWERS, USUAL_PROMPT_TOKENS

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
        keep = 1.0 - 1.0 / MEMORY_ANSWERS
        others_s = self.reading_s(self._read_tokens - read_before)
        self._decode_s = self._decode_s * keep + decode_s
        self._own_s = self._own_s * keep + decode_s - others_s

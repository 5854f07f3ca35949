"""How long will one engine take: prefill by prompt, decode by load.

TTFT = a + b x uncached prompt tokens; TPOT = c + d x running streams (the linear parts of the step-time models
in `engine/profile`; the attention terms are small against what queueing adds). Both lines start at the prior of
the engine's profile and are learned from what is served, per engine.
"""

from typing import Final

from headgate.core.measure.line import LearnedLine
from headgate.core.settings import ServicePrior

# Where the priors' pseudo-observations lie: a usual prompt and a usual batch.
_TYPICAL_PROMPT_TOKENS: Final = 1000.0
_TYPICAL_STREAMS: Final = 16.0


class ServiceTime:
    """The learned speed of one engine; times are seconds."""

    __slots__ = ("_tpot", "_ttft")

    def __init__(self, prior: ServicePrior) -> None:
        self._ttft = LearnedLine(prior.ttft_base_s, prior.ttft_per_token_s, typical_x=_TYPICAL_PROMPT_TOKENS)
        self._tpot = LearnedLine(prior.tpot_base_s, prior.tpot_per_stream_s, typical_x=_TYPICAL_STREAMS)

    def ttft_s(self, prompt_tokens: float) -> float:
        """Return the predicted time to first token for so many uncached prompt tokens, own and ahead."""
        return self._ttft.at(prompt_tokens)

    def tpot_s(self, streams: float) -> float:
        """Return the predicted time per output token with so many streams running."""
        return self._tpot.at(streams)

    def service_s(self, prompt_tokens: float, output_tokens: float, streams: float) -> float:
        """Return the predicted time from permit to last token."""
        return self._ttft.at(prompt_tokens) + max(0.0, output_tokens - 1.0) * self._tpot.at(streams)

    def engine_s(self, prompt_tokens: float, output_tokens: float, streams: float) -> float:
        """Return the part of the engine's own time that this takes while so many streams share it, in seconds.

        A prompt has the engine to itself, a step of decoding is shared by all: per_token x prompt + output x
        TPOT / streams. TPOT holds what others' prompts take, so answers are priced somewhat above their part
        (by 2.4 on Azure conversations, which changes hardly an order there).
        """
        shared_s = self._tpot.at(streams) / max(1.0, streams)
        return self._ttft.slope * prompt_tokens + output_tokens * shared_s

    def learn_ttft(self, prompt_tokens: float, ttft_s: float) -> None:
        """Learn one time to first token; `prompt_tokens` counts what had to be prefilled before it as well."""
        if ttft_s > 0.0:
            self._ttft.add(prompt_tokens, ttft_s)

    def learn_tpot(self, streams: float, tpot_s: float) -> None:
        """Learn one answer's mean time per output token."""
        if tpot_s > 0.0:
            self._tpot.add(streams, tpot_s)

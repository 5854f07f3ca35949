"""What the gate has counted since it began: for the snapshot, for spreading hints, and for what a first answer teaches."""

from typing import Final

from millgate.core.decisions import Ended
from millgate.core.measure.window import Window
from millgate.core.words import Outcome

# Attempts and requests are remembered for ten minutes, in parts of ten seconds.
_PART_S: Final = 10.0
_PARTS: Final = 60


class Totals:
    """Arrivals and what was known of them, whole answers, hints, and the tokens of good and of wasted work."""

    def __init__(self) -> None:
        self.answers = self.arrivals = self.labelled = self.recognised = self.early = self.hints_given = 0
        self._lately = Window(_PART_S, _PARTS, counters=2)
        self.good_output_tokens = self.wasted_prompt_tokens = self.wasted_output_tokens = 0

    def arrived(self, now: float, *, is_retry: bool) -> None:
        """Count an arrival, and a request unless it is a retry of one."""
        self.arrivals += 1
        self._lately.add(now, (1, not is_retry))

    def amplification(self, now: float, window_s: float) -> float:
        """Return attempts over requests of the last `window_s`, ten minutes at most; 1 of nothing."""
        attempts, requests = self._lately.read(now, round(window_s / _PART_S))
        return attempts / max(1, requests) if attempts else 1.0

    def returned(self, *, labelled: bool, recognised: bool, early: bool) -> None:
        """Count a return: a retry by its label, a request that was recognised, one that came before its hint."""
        self.labelled += labelled
        self.recognised += recognised
        self.early += early

    def answered(self) -> None:
        """Count a whole answer that teaches how long answers are."""
        self.answers += 1

    def hinted(self) -> None:
        """Count a hint."""
        self.hints_given += 1

    def ended(self, ended: Ended) -> None:
        """Count the tokens of an attempt that an engine has worked for."""
        if ended.outcome is Outcome.GOOD:
            self.good_output_tokens += ended.output_tokens
        elif ended.outcome is not Outcome.BAD_REQUEST:
            self.wasted_output_tokens += ended.output_tokens
            self.wasted_prompt_tokens += ended.prompt_tokens

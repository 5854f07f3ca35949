"""What an engine generated in vain: tokens of sequences that were aborted, or whose client had left."""

from millgate.engine.sequences import SequenceProgress


class Waste:
    """The account of departures. *Wasted* are all tokens of such a sequence, *orphans* those made afterwards."""

    def __init__(self) -> None:
        self._departed: dict[int, SequenceProgress] = {}
        self._wasted_tokens = 0
        self._orphan_tokens = 0

    def depart(self, progress: SequenceProgress, step: int) -> bool:
        """Note that this sequence has no reader from `step` on; False when that was known."""
        if progress.departed_at_tokens >= 0:
            return False
        progress.departed_at_tokens = progress.produced_by(step)
        self._departed[progress.sequence.sequence_id] = progress
        return True

    def settle(self, progress: SequenceProgress) -> None:
        """Close the account of a departed sequence that makes no more tokens."""
        del self._departed[progress.sequence.sequence_id]
        self._wasted_tokens += progress.produced_tokens
        self._orphan_tokens += progress.produced_tokens - progress.departed_at_tokens

    def tokens(self, step: int) -> tuple[int, int]:
        """Wasted and orphan tokens when `step` steps are over, running sequences included."""
        departed = self._departed.values()
        made = sum([progress.produced_by(step) for progress in departed], 0)
        made_before = sum([progress.departed_at_tokens for progress in departed], 0)
        return self._wasted_tokens + made, self._orphan_tokens + made - made_before

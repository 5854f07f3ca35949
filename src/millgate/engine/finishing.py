"""Which decoding sequence finishes next: a heap by step, in which a preempted or aborted one leaves its entry behind."""

from heapq import heappop, heappush

from millgate.engine.sequences import SequenceProgress, SequenceState


class FinishOrder:
    """Decoding sequences by the step at which they finish, equal ones in the order in which they began to decode."""

    __slots__ = ("_heap", "_ticket")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, SequenceProgress]] = []
        self._ticket = 0

    def add(self, progress: SequenceProgress) -> None:
        """Put in a sequence whose `finish_step` is known."""
        self._ticket += 1
        heappush(self._heap, (progress.finish_step, self._ticket, progress))

    def next_step(self) -> int:
        """Return the step at which the next one finishes; at least one must decode."""
        heap = self._heap
        while heap[0][2].finish_step != heap[0][0] or heap[0][2].state is not SequenceState.DECODING:
            heappop(heap)
        return heap[0][0]

    def take(self, step: int) -> SequenceProgress | None:
        """Take out one that finishes by this step; None when there is none."""
        heap = self._heap
        while heap and heap[0][0] <= step:
            finish_step, _, progress = heappop(heap)
            if progress.finish_step == finish_step and progress.state is SequenceState.DECODING:
                return progress
        return None

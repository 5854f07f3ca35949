"""Which sequence is next: those that wait, first come first, and those that decode, by the step at which they finish."""

from collections import deque
from heapq import heappop, heappush

from millgate.engine.sequences import SequenceProgress, SequenceState

QUEUE_SLACK = 64
"""Places of aborted sequences that the queue may keep before it is swept."""


class WaitingQueue:
    """A queue whose aborted members keep their places until they come to the front, or until they are too many."""

    def __init__(self) -> None:
        self.count = 0
        self._places: deque[SequenceProgress] = deque()

    def add(self, progress: SequenceProgress) -> None:
        """Put a sequence at the end."""
        self._places.append(progress)
        self.count += 1

    def put_back(self, progress: SequenceProgress) -> None:
        """Put a preempted sequence at the front."""
        self._places.appendleft(progress)
        self.count += 1

    def first(self) -> SequenceProgress | None:
        """Return the sequence that has waited longest, None when no sequence waits."""
        places = self._places
        while places and places[0].state is SequenceState.OVER:
            places.popleft()
        return places[0] if places else None

    def take(self) -> None:
        """Take out the one that `first` has returned."""
        self._places.popleft()
        self.count -= 1

    def drop(self, progress: SequenceProgress) -> bool:
        """End a sequence that waits; True when it was the first."""
        places = self._places
        was_first = places[0] is progress
        progress.state = SequenceState.OVER
        self.count -= 1
        while places and places[0].state is SequenceState.OVER:
            places.popleft()
        if len(places) > 2 * self.count + QUEUE_SLACK:
            self._places = deque(queued for queued in places if queued.state is SequenceState.WAITING)
        return was_first


class FinishOrder:
    """Decoding sequences by the step at which they finish, equal ones in the order in which they began to decode."""

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

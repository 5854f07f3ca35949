"""When will permits come free? Read off the running work, and off how fast a full gate empties.

With N permits out, the first N places open when the running work is expected to end, in that order; every further
N one cycle later, a cycle being N over the measured drain rate. For one stream that is the residual of the running
answer; for a large batch of mixed ages it approaches place / drain rate; for a batch that started together it is
right where place / drain rate would be wrong by the whole batch. Where only the prefill meter is full, a place opens
as soon as the prompts before it are read.

The expected ends are kept in a sorted list. Who starts, reads a first token or ends is only noted, and the list is
brought up to date when somebody asks: a gate that refuses nobody pays one append. The ends rest on each engine's
*pace*, its learned TPOT as it was read when, over all engines, an eighth of the running streams had answered since
the last reading: re-sorting a thousand streams at every answer would cost more than the rest of the decision. All of it is a cache:
asking, or not, changes no answer.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from math import sqrt
from typing import Final

from headgate.core.governor.records import Attempt, Engine
from headgate.core.lifecycle import State

# Nothing known to drain: one departure in the longest time that a hint may name.
_SLOWEST_PER_S: Final = 1.0 / 60.0
# One-sided 90 % point of the normal law: promises of waiting are kept nine times in ten (QLM's upper quantile).
_UPPER_Z: Final = 1.2816
# The pace is read again after one answer in so many running streams.
_PACE_SHARE: Final = 8
# Beyond so many notes, and a quarter of the list, building it anew is cheaper than changing it.
_FEW_NOTES: Final = 8
# Answers that outlive their expectation by d are expected to take d more and this: the doubling rule, which fits
# an engine that is a little slow and a heavy tail alike.
_LATE_STEP_S: Final = 0.1


class Openings:
    """The expected times at which the permits of one pool's engines come free."""

    __slots__ = (
        "_answers",
        "_attempts",
        "_ends",
        "_engines",
        "_most_notes",
        "_noted",
        "_per_s",
        "_prompt_metered",
        "_stale",
    )

    def __init__(self, attempts: dict[int, Attempt], engines: Sequence[Engine]) -> None:
        self._answers = 0
        self._attempts = attempts
        self._engines = engines
        self._ends: list[float] = []
        self._noted: list[Attempt] = []
        self._most_notes = _FEW_NOTES
        self._stale = False
        self._per_s: float | None = None
        self._prompt_metered: list[Engine] = []

    def note(self, attempt: Attempt) -> None:
        """Take note that this attempt has started, read its first token, or ended."""
        self._per_s = None
        if not self._stale:
            noted = self._noted
            noted.append(attempt)
            self._stale = len(noted) > self._most_notes

    def answered(self, running: int) -> None:
        """Take note that an engine's learned speed has changed by one answer, while so many permits are out."""
        self._answers += 1
        if self._answers * _PACE_SHARE > running:
            self._answers = 0
            for engine in self._engines:
                engine.pace_s = engine.service.tpot_s(engine.drain.full_streams)
            self._stale = True

    def rate_changed(self) -> None:
        """Take note that what counts as full has changed."""
        self._per_s = None

    def unsettle(self) -> None:
        """Forget every derived number: engines or limits have changed."""
        self._per_s = None
        self._prompt_metered = [each for each in self._up() if each.gate.prefill_limit is not None]
        self._stale = True

    def wait_s(self, place: int, now: float) -> float:
        """Return the expected time until the `place`-th permit (1 is next) comes free."""
        if self._prompt_metered and (reading_s := self._reading_s(place)) is not None:
            return reading_s
        ends = self._sorted_ends()
        per_s = self.per_s()
        if not ends:
            return place / per_s
        laps, index = divmod(place - 1, len(ends))
        cycle_s = len(ends) / per_s
        if ends[0] >= now:
            return ends[index] - now + laps * cycle_s
        late_by_s = min(cycle_s, now - ends[0] + _LATE_STEP_S)
        return _among_late_s(ends, bisect_right(ends, now), late_by_s, index + 1, now) + laps * cycle_s

    def upper_s(self, place: int) -> float:
        """Return how much longer than expected the `place`-th permit may take, nine times in ten."""
        if self._reading_s(place) is not None:
            return 0.0
        up = self._up()
        widest_s = max([engine.drains().spread_s for engine in up], default=0.0)
        return _UPPER_Z * widest_s * sqrt(place / max(1, len(up)))

    def per_s(self) -> float:
        """Return how many permits a second end while every gate is full."""
        per_s = self._per_s
        if per_s is None:
            per_s = sum([engine.drains().per_s for engine in self._up()])
            per_s = self._per_s = per_s or _SLOWEST_PER_S
        return per_s

    def _reading_s(self, place: int) -> float | None:
        """Return the time until the prompts before this place are read, where nothing else is in the way."""
        least_s: float | None = None
        for each in self._prompt_metered:
            if each.only_prompts_block(place):
                reading_s = each.reading_s(place)
                if least_s is None or reading_s < least_s:
                    least_s = reading_s
        return least_s

    def _up(self) -> list[Engine]:
        return [engine for engine in self._engines if engine.up and not engine.retired]

    def _sorted_ends(self) -> list[float]:
        if self._stale:
            self._stale = False
            self._ends = sorted([_list_anew(each) for each in self._attempts.values() if self._is_ours(each)])
            self._noted.clear()
            self._most_notes = _FEW_NOTES + len(self._ends) // 4
        elif self._noted:
            for attempt in self._noted:
                self._list_again(attempt)
            self._noted.clear()
        return self._ends

    def _is_ours(self, attempt: Attempt) -> bool:
        return attempt.engine is not None and attempt.engine.openings is self

    def _list_again(self, attempt: Attempt) -> None:
        ends, listed = self._ends, attempt.listed_end
        if listed is not None:
            del ends[bisect_left(ends, listed)]
            attempt.listed_end = None
        if attempt.state is not State.OVER:
            insort(ends, _list_anew(attempt))


def _list_anew(attempt: Attempt) -> float:
    attempt.listed_end = end = expected_end(attempt)
    return end


def expected_end(attempt: Attempt) -> float:
    """Return when this attempt's permit is expected to end, an absolute core time."""
    if attempt.state is State.DEPARTING:
        return attempt.give_up_at
    assert attempt.engine is not None
    decode_s = attempt.output_tokens * attempt.engine.pace_s
    if attempt.first_token_at is None:
        return attempt.admitted_at + attempt.expected_ttft_s + decode_s
    return attempt.first_token_at + decode_s


def _among_late_s(ends: list[float], late: int, late_by_s: float, place: int, now: float) -> float:
    """Return the time until so many permits have come free, where the first `late` ends have passed unnoticed.

    Those end evenly over `late_by_s`, beside the others.
    """
    low, high = late, len(ends)
    while low < high:
        middle = (low + high) // 2
        passed = min(1.0, (ends[middle] - now) / late_by_s)
        if middle - late + 1 + passed * late < place:
            low = middle + 1
        else:
            high = middle
    wait_s = (place - (low - late) - 0.5) / late * late_by_s
    if low > late:
        wait_s = max(wait_s, ends[low - 1] - now)
    return wait_s if low == len(ends) else min(wait_s, ends[low] - now)

"""Least predicted engine time first, aged by the wait; and the same order with a bound on overtakes (INV-9).

Under overload some requests are refused whatever the order. Refusing the long ones serves the most users in time
(shortest job first is optimal for the mean: Smith 1956; by predicted size: QoServe, ASPLOS'26).

Sizes are estimates, so the rank is an age: half the engine time is worth `_HALVING_S` of waiting. The difference of two
ranks never changes, so a rank is fixed at arrival; while sizes are being learned the governor ranks what waits anew
(`core/governor/ranks.py`).

Ageing alone lets work twenty times as short pass for 277 s. `BoundedShortFirstOrder` lets each queued attempt be overtaken by
`max_overtakes` attempts that entered later, and not by one more (ageing by a count of passes, as in Fu et al., *LLM scheduling
by learning to rank*, NeurIPS'24). It is for lanes that ask for it: a bound that acts serves fewer users in time.

An attempt that is admitted passes all that entered before it and still wait. So of two that wait the older has been passed
at least as often, and only the oldest has to be looked at. Each entry keeps the admissions that passed it and no newer
entry; its overtakes are the sum from it to the newest, the oldest's the sum of all. An admission is one increment at the entry
just older than the admitted one. An entry that leaves hands its number on to the entry just older: exact, in constant time.
"""

from collections import deque
from collections.abc import Iterator
from math import inf, log2
from typing import Final

from millgate.core.queues.base import Queued
from millgate.core.queues.ranked import Key, RankedQueue

# Seconds of waiting that are worth a halving of the engine time. Good users of the overload of docs/policies/sizing.md as a
# share of the first-come optimum, 32 loads: 1.107 with no ageing, 1.110 with 64; 8 loads with 16: 1.093 for 1.100.
_HALVING_S: Final = 64.0


def _by_aged_engine_time(queued: Queued) -> Key:
    """Return the age that counts: the engine time in halvings beside the real one; before all where it is 0."""
    engine_s = queued.engine_s
    aged_s = queued.as_old_as + _HALVING_S * log2(engine_s) if engine_s > 0.0 else -inf
    return (aged_s, queued.as_old_as, queued.turn, queued.arrival_number)


class ShortFirstOrder(RankedQueue):
    """Ordered by predicted engine time, aged, then by age."""

    def __init__(self) -> None:
        super().__init__(_by_aged_engine_time)


class _Entry:
    """One queued attempt in the line of entry; `passed` counts the admissions that passed it and no newer entry."""

    def __init__(self, queued: Queued, older: "_Entry | None") -> None:
        self.queued = queued
        self.older = older
        self.newer: _Entry | None = None
        self.passed = 0


class BoundedShortFirstOrder(ShortFirstOrder):
    """The same, but the oldest goes first once it was passed `max_overtakes` times.

    That is 1 at least: an order in which none is ever passed is `arrival`.
    """

    def __init__(self, max_overtakes: int) -> None:
        super().__init__()
        self._max_overtakes = max_overtakes
        self._entries: dict[int, _Entry] = {}
        self._oldest: _Entry | None = None
        self._youngest: _Entry | None = None
        self._just_left: int | None = None
        self._older_than_left: _Entry | None = None
        self.overtakes = 0
        """How many later arrivals have passed the oldest that waits."""

    def add(self, queued: Queued) -> None:
        """Put an attempt in its place."""
        super().add(queued)
        entry = self._entries[queued.attempt] = _Entry(queued, self._youngest)
        if self._youngest is None:
            self._oldest = entry
        else:
            self._youngest.newer = entry
        self._youngest = entry

    def remove(self, queued: Queued) -> None:
        """Take this attempt out, wherever it stands; it must be in."""
        super().remove(queued)
        entry = self._entries.pop(queued.attempt)
        older, newer = entry.older, entry.newer
        if older is None:
            self._oldest = newer
            self.overtakes -= entry.passed
        else:
            older.newer = newer
            older.passed += entry.passed
        if newer is None:
            self._youngest = older
        else:
            newer.older = older
        self._just_left, self._older_than_left = queued.attempt, older

    def started(self, queued: Queued, now: float) -> None:  # noqa: ARG002 - the contract's: this order counts, it does not time
        """Count one overtake of every attempt that entered before this one and still waits."""
        if not self._entries:
            return
        passed = self._older_than_left if queued.attempt == self._just_left else self._youngest
        if passed is not None:
            passed.passed += 1
            self.overtakes += 1

    def head(self) -> Queued | None:
        """Return the next attempt, without taking it out."""
        if self.overtakes >= self._max_overtakes and self._oldest is not None:
            return self._oldest.queued
        return super().head()

    def last(self) -> Queued:
        """Return the last of all, which is due itself where every other one is."""
        return deque(self, maxlen=1)[0]

    def ahead_of(self, queued: Queued) -> int:
        """Return how many would be admitted before this one, whether or not it is in.

        Exact while the shorter ones cannot use up the overtakes of any entry. Beyond that an estimate, as if they were
        spread evenly over the line of entry.
        """
        return self._with_due(super().ahead_of(queued), len(self._keys), queued)

    def _with_due(self, shorter: int, waiting: int, queued: Queued) -> int:
        """Return the shorter ones and those whose overtakes will have run out before this one's turn."""
        reach = self.overtakes + shorter
        if reach < self._max_overtakes:
            return shorter
        oldest = self._oldest
        if oldest is None or oldest.queued is queued:
            return 0 if self.overtakes >= self._max_overtakes else shorter
        due = min(waiting, 1 + int(waiting * (1.0 - self._max_overtakes / reach)))
        return shorter + due * (waiting - shorter) // waiting

    def __iter__(self) -> Iterator[Queued]:
        """Yield everything that waits, next first, as far as no overtakes run out on the way."""
        due = {queued.attempt: queued for queued in self._due()}
        yield from due.values()
        yield from (queued for queued in super().__iter__() if queued.attempt not in due)

    def _due(self) -> Iterator[Queued]:
        """Yield, oldest first, what has been passed often enough already."""
        entry, overtakes = self._oldest, self.overtakes
        while entry is not None and overtakes >= self._max_overtakes:
            yield entry.queued
            overtakes -= entry.passed
            entry = entry.newer

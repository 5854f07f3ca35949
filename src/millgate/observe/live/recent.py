"""The last decisions told to people, newest first, so that they see why the gate did what it did.

Words are made on reading. Nothing that a client sent is in them: attempts are numbers, lanes and engines are
names of the configuration.

What is kept is bytes. To look through all of it for a filter that little fits would stop the loop for ten
milliseconds, again and again for every watcher. So while a watcher looks, decisions are sorted as they come, before
they are bytes: a microsecond each, however many look for whatever. What came before the first look is read once, a
little at a time.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from millgate.observe.explanation import numbers
from millgate.observe.live.decision_index import MOST_KEPT, DecisionIndex, Entry
from millgate.observe.ring import FEWEST_STEPS, Kept, Ring

UNWATCHED_AFTER_S: Final = 5.0
"""After so long without a look there is no watcher; the page asks every two seconds, and paints twice a second."""
STEPS_AT_ONCE: Final = 128
"""Older steps that are read together: half a millisecond."""


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """One decision for people: `number` counts decisions since start, `at` is in seconds, `words` say its numbers.

    `kind` is admit, queue, yield, cancel or ended; `word` its reason or outcome, empty where it has none.
    """

    number: int
    at: float
    kind: str
    word: str
    attempt: int
    lane: str
    engine: str
    words: str


@dataclass(frozen=True, slots=True)
class DecisionFilter:
    """Which decisions are wanted; None takes all. `word` is a kind, a reason or an outcome."""

    word: str | None = None
    lane: str | None = None
    engine: str | None = None
    attempt: int | None = None


class Recent:
    """The newest decisions of a ring: indexed while a watcher looks, and nothing without one."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._asked_at = 0.0
        self._index: DecisionIndex | None = None
        self._older: Iterator[tuple[int, Kept]] = iter(())

    def recall(self, now: float) -> bool:
        """Read some of what came before the first look, for a look at core time `now`; return whether there is more."""
        self._asked_at = now
        index = self._open()
        read = list(islice(self._older, STEPS_AT_ONCE))
        has_room = all(index.add_older(last, step) for last, step in read)
        if has_room and len(read) == STEPS_AT_ONCE:
            return True
        self._older = iter(())
        return False

    def rows(
        self, most: int, wanted: DecisionFilter, lanes: Sequence[str], now: float, epoch: float = 0.0
    ) -> tuple[DecisionRow, ...]:
        """Return up to `most` rows at core time `now`, newest first, their times moved by `epoch`.

        `lanes` are the configured ones, the first takes what names none. With a filter everything is read first that
        `recall` has left; without one, what the rows need, and a little more each time: it may be known later only
        which lane an attempt that has waited long came to.
        """
        more, index = self.recall(now), self._open()
        enough = most if wanted == DecisionFilter() else MOST_KEPT
        while more and len(index.entries) < enough:
            more = self.recall(now)
        own = _Lanes(index.lanes, lanes)
        found: list[Entry] = []
        for entries in index.fitting(wanted.word, wanted.engine):
            found += islice(_wanted(entries, wanted, own), most)
        found.sort(key=lambda entry: entry[0], reverse=True)
        return tuple([_row(entry, own, epoch) for entry in found[:most]])

    def _open(self) -> DecisionIndex:
        if self._index is None:
            self._index = DecisionIndex(self._ring.decided)
            self._older = self._ring.newest(FEWEST_STEPS)
            self._ring.followers.append(self._follow)
        return self._index

    def _follow(self, steps: Sequence[Kept]) -> None:
        """Take the newest steps, or forget everything when the last watcher has left."""
        if self._index is not None and steps[-1][0] - self._asked_at <= UNWATCHED_AFTER_S:
            self._index.add(steps)
            return
        self._ring.followers.remove(self._follow)
        self._index = None
        self._older = iter(())


class _Lanes:
    """What attempts asked for, as the core takes it: a lane that is not configured is the first one."""

    def __init__(self, asked: Mapping[int, str], known: Sequence[str]) -> None:
        self._asked = asked
        self._known = known

    def of(self, attempt: int) -> str:
        """Return the lane, empty where it is not known: the arrival is no longer kept, or not yet read."""
        lane = self._asked.get(attempt)
        if lane is None:
            return ""
        return lane if lane in self._known else self._known[0]


def _wanted(entries: deque[Entry], wanted: DecisionFilter, lanes: _Lanes) -> Iterator[Entry]:
    """Return those of this attempt and lane, newest first."""
    found: Iterator[Entry] = reversed(entries)
    if wanted.attempt is not None:
        found = (entry for entry in found if entry[4][0] == wanted.attempt)
    if wanted.lane is not None:
        found = (entry for entry in found if lanes.of(entry[4][0]) == wanted.lane)
    return found


def _row(entry: Entry, lanes: _Lanes, epoch: float) -> DecisionRow:
    number, at, was_queued, listed, decision = entry
    return DecisionRow(
        number=number,
        at=epoch + at,
        kind=listed.kind,
        word=str(listed.word),
        attempt=decision.attempt,
        lane=lanes.of(decision.attempt),
        engine=listed.engine,
        words=numbers(decision, at, was_queued=was_queued),
    )

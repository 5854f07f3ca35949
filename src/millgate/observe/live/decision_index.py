"""The newest decisions on index: those that no filter tells apart lie together, so that nothing else is looked through.

It is filled on the path of every request while a watcher looks, so it is compiled, and its entries are plain tuples.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from millgate.core.decisions import Admit, Cancel, Decision, Ended, Queue, Yield
from millgate.core.words import Outcome
from millgate.observe.ring import FEWEST_STEPS, Facts, Kept, place_in_facts

MOST_KEPT: Final = FEWEST_STEPS
"""Decisions on all index together: with their records some 3 MB (INV-5)."""
_LANES_KEPT: Final = 2 * MOST_KEPT
_ATTEMPT: Final = place_in_facts("attempt")
_LANE: Final = place_in_facts("lane")


class DecisionList:
    """Decisions of one kind with one word and one engine, oldest first; both are empty where there is none.

    `kind` is admit, queue, yield, cancel or ended, `word` a reason or an outcome.
    """

    def __init__(self, kind: str, word: str, engine: str) -> None:
        self.kind = kind
        self.word = word
        self.engine = engine
        self.entries: deque[Entry] = deque()


Entry = tuple[int, float, bool, DecisionList, Decision]
"""One decision: its number, its core time, whether it came later than its attempt's arrival, and where it lies."""


class DecisionIndex:
    """Takes decisions, `number` of which were made before, and keeps the newest `MOST_KEPT`, all of them in `entries`.

    `lanes` are those that attempts asked for, or ended in where that is known. The end of an attempt that was refused out
    of a queue is left out: its refusal is there already.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._by_sort: dict[tuple[str, str, str], DecisionList] = {}
        self.entries: deque[Entry] = deque()
        self.lanes: dict[int, str] = {}

    def add(self, steps: Sequence[Kept]) -> None:
        """Take the newest steps, oldest first."""
        for step in steps:
            at, facts, decisions = step
            if facts is not None:
                self.lanes[facts[_ATTEMPT]] = facts[_LANE] or ""
            for decision in decisions:
                self._number += 1
                lane = _lane_in(decision)
                if lane:
                    self.lanes[decision.attempt] = lane
                entry = self._entry(self._number, at, facts, decision)
                if entry is not None:
                    self.entries.append(entry)
                    entry[3].entries.append(entry)
        self._drop_oldest()

    def add_older(self, last: int, step: Kept) -> bool:
        """Take the step before all others, whose last decision has this number; return whether there is room for more."""
        at, facts, decisions = step
        number = last
        for decision in reversed(decisions):
            lane = _lane_in(decision)
            if lane:
                self.lanes.setdefault(decision.attempt, lane)
            entry = self._entry(number, at, facts, decision)
            number -= 1
            if entry is not None and len(self.entries) < MOST_KEPT:
                self.entries.appendleft(entry)
                entry[3].entries.appendleft(entry)
        if facts is not None:
            self.lanes.setdefault(facts[_ATTEMPT], facts[_LANE] or "")
        return len(self.entries) < MOST_KEPT

    def fitting(self, word: str | None, engine: str | None) -> list[deque[Entry]]:
        """Return the entries with this kind, reason or outcome and this engine, listed by listed; None takes all."""
        if word is None and engine is None:
            return [self.entries]
        return [
            listed.entries
            for listed in self._by_sort.values()
            if (word is None or word in (listed.kind, listed.word))
            and (engine is None or engine == listed.engine)
        ]

    def _entry(self, number: int, at: float, facts: Facts | None, decision: Decision) -> Entry | None:
        """Return where this belongs, None for what has no row."""
        if type(decision) is Ended and decision.outcome is Outcome.YIELDED:
            return None
        kind, word, engine = _sort(decision)
        # Beside its arrival stands what else it led to: only the first decision is its own.
        was_queued = facts is None or facts[_ATTEMPT] != decision.attempt
        return number, at, was_queued, self._listed(kind, word, engine), decision

    def _listed(self, kind: str, word: str, engine: str) -> DecisionList:
        found = self._by_sort.get((kind, word, engine))
        if found is None:
            found = self._by_sort[kind, word, engine] = DecisionList(kind, word, engine)
        return found

    def _drop_oldest(self) -> None:
        while len(self.entries) > MOST_KEPT:
            listed = self.entries.popleft()[3]
            listed.entries.popleft()
            if not listed.entries:
                del self._by_sort[listed.kind, listed.word, listed.engine]
        while len(self.lanes) > _LANES_KEPT:
            del self.lanes[next(iter(self.lanes))]


def _lane_in(decision: Decision) -> str:
    """Return the lane that a decision tells of, empty where it tells of none: the attempt's own, by its end or its class."""
    if isinstance(decision, Ended):
        return decision.lane
    if isinstance(decision, Cancel):
        return ""
    classed = decision.classed
    return "" if classed is None else classed.lane


def _sort(decision: Decision) -> tuple[str, str, str]:
    if type(decision) is Admit:
        return "admit", decision.would or "", decision.legs[0].engine if decision.legs else ""
    if type(decision) is Ended:
        return "ended", decision.outcome, decision.engine or ""
    if type(decision) is Queue:
        return "queue", "", ""
    if type(decision) is Yield:
        return "yield", decision.reason, ""
    assert type(decision) is Cancel
    return "cancel", decision.reason, ""

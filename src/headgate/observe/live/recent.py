"""The last decisions told to people, newest first, so that they see why the gate did what it did.

Words are made when somebody reads. Nothing that a client sent is in them: attempts are numbers, lanes and engines are
names of the configuration.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import tee
from typing import Final, NamedTuple

from headgate.core.decisions import Admit, Cancel, Decision, Ended, Yield
from headgate.core.words import Outcome
from headgate.observe.retelling import numbers
from headgate.observe.ring import FEWEST_STEPS, Ring, place_in_facts

_LANE: Final = place_in_facts("lane")


class _Entry(NamedTuple):
    """One decision of the ring; `lane` is what an arrival asked for, None for decisions about earlier ones."""

    number: int
    at: float
    lane: str | None
    decision: Decision


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """One decision for people: `number` counts decisions since start, `at` is core seconds, `words` say its numbers.

    `kind` is admit, hold, yield, cancel or ended; `word` its reason or outcome, empty where it has none.
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


def recent_rows(ring: Ring, most: int, wanted: DecisionFilter, lanes: Sequence[str]) -> list[DecisionRow]:
    """Return up to `most` rows of the newest `FEWEST_STEPS` steps, newest first.

    `lanes` are the configured ones, the first takes what names none. The end of an attempt that was refused out of a
    queue is left out: its refusal is there already.
    """
    found: list[_Entry] = []
    entries, again = tee(_entries(ring))
    lane_of = _Lanes(again, lanes)
    for entry in entries:
        if _fits(entry.decision, wanted) and (
            wanted.lane is None or lane_of.find(entry.decision.attempt) == wanted.lane
        ):
            found.append(entry)
            if len(found) == most:
                break
    return [_row(entry, lane_of.find(entry.decision.attempt)) for entry in found]


def _entries(ring: Ring) -> Iterator[_Entry]:
    for last, (at, facts, decisions) in ring.newest(FEWEST_STEPS):
        lane = None if facts is None else facts[_LANE] or ""
        for age, decision in enumerate(reversed(decisions)):
            # Beside its arrival stands what else it led to: only the first decision is its own.
            own = lane if facts is not None and decision.attempt == facts[0] else None
            yield _Entry(last - age, at, own, decision)


def _fits(decision: Decision, wanted: DecisionFilter) -> bool:
    """Return whether this decision is wanted, whatever its lane."""
    if type(decision) is Ended and decision.outcome is Outcome.YIELDED:
        return False
    return (
        (wanted.attempt is None or decision.attempt == wanted.attempt)
        and (wanted.word is None or wanted.word in {_kind(decision), _word(decision)})
        and (wanted.engine is None or _engine(decision) == wanted.engine)
    )


class _Lanes:
    """The lane of every attempt, as far as its arrival or its end is still kept; entries are read as far as asked."""

    def __init__(self, entries: Iterator[_Entry], known: Sequence[str]) -> None:
        self._entries = entries
        self._known = known
        self._found: dict[int, str] = {}

    def find(self, attempt: int) -> str:
        """Return the lane, empty where it is no longer known."""
        while attempt not in self._found:
            entry = next(self._entries, None)
            if entry is None:
                return ""
            if type(entry.decision) is Ended:
                self._found[entry.decision.attempt] = entry.decision.lane
            elif entry.lane is not None:
                lane = entry.lane if entry.lane in self._known else self._known[0]
                self._found.setdefault(entry.decision.attempt, lane)
        return self._found[attempt]


def _row(entry: _Entry, lane: str) -> DecisionRow:
    decision = entry.decision
    return DecisionRow(
        number=entry.number,
        at=entry.at,
        kind=_kind(decision),
        word=_word(decision),
        attempt=decision.attempt,
        lane=lane,
        engine=_engine(decision),
        words=numbers(decision, entry.at, was_held=entry.lane is None),
    )


def _kind(decision: Decision) -> str:
    return type(decision).__name__.lower()


def _word(decision: Decision) -> str:
    if isinstance(decision, Ended):
        return decision.outcome.value
    if isinstance(decision, Admit):
        return decision.would.value if decision.would else ""
    return decision.reason.value if isinstance(decision, Yield | Cancel) else ""


def _engine(decision: Decision) -> str:
    if isinstance(decision, Admit):
        return decision.legs[0].engine if decision.legs else ""
    return (decision.engine or "") if isinstance(decision, Ended) else ""

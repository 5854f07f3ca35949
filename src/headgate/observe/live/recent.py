"""The last decisions, kept as the core made them, so that a person can see why the gate did what it did.

On the path one tuple is appended per decision; words are made only when somebody reads. Nothing that a client sent
is kept: attempts are numbers, lanes and engines are names of the configuration.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from headgate.core.decisions import Admit, Cancel, Decision, Ended, Yield
from headgate.core.events import Arrived, Event
from headgate.core.words import Outcome, Reason
from headgate.observe.live.phrases import decision_words

MOST_DECISIONS: Final = 4096
"""Kept at once; with some 250 bytes each they hold about 1 MB (INV-5)."""

OVERLOAD_REASONS: Final = frozenset(
    {Reason.SATURATED, Reason.QUEUE_FULL, Reason.DISPLACED, Reason.TOO_LATE, Reason.EXPIRED}
)
"""Refusals for want of capacity; the others are rules (quotas), bad fit, or an engine that is gone."""

QUIET_S: Final = 10.0
"""Refusals further apart than this belong to two overloads: hints of a short one send clients back sooner."""


class _Kept(NamedTuple):
    """`lane` is what an arrival asked for, empty where it asked for none; None for decisions about earlier ones."""

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

    def takes(self, row: DecisionRow) -> bool:
        """Return whether this row is wanted."""
        return (
            (self.attempt is None or row.attempt == self.attempt)
            and (self.word is None or self.word in {row.kind, row.word})
            and (self.lane is None or row.lane == self.lane)
            and (self.engine is None or row.engine == self.engine)
        )


class RecentDecisions:
    """An observer that keeps the newest decisions; `refusing_since` is when the present overload began to refuse."""

    __slots__ = ("_kept", "_kept_ever", "_refused_at", "refusing_since")

    def __init__(self) -> None:
        self._kept: deque[_Kept] = deque(maxlen=MOST_DECISIONS)
        self._kept_ever = 0
        self._refused_at = float("-inf")
        self.refusing_since = 0.0

    def on_step(self, event: Event, decisions: tuple[Decision, ...], now: float) -> None:
        """Keep what was decided at core time `now`."""
        if not decisions:
            return
        lane = (event.lane or "") if type(event) is Arrived else None
        self._kept_ever += len(decisions)
        for decision in decisions:
            self._kept.append(_Kept(now, lane, decision))
            if type(decision) is Yield and decision.reason in OVERLOAD_REASONS:
                if now - self._refused_at > QUIET_S:
                    self.refusing_since = now
                self._refused_at = now

    def is_refusing(self, now: float) -> bool:
        """Return whether anybody was refused for want of capacity within the last `QUIET_S`."""
        return now - self._refused_at <= QUIET_S

    def hints(self, now: float) -> tuple[float, float] | None:
        """Return the shortest and longest hint of the last `QUIET_S` that was worth following, or None."""
        hints = [
            kept.decision.retry_after_s
            for kept in self._newest_first()
            if type(kept.decision) is Yield and kept.decision.retry and now - kept.at <= QUIET_S
        ]
        return (min(hints), max(hints)) if hints else None

    def rows(self, most: int, wanted: DecisionFilter, lanes: Sequence[str]) -> list[DecisionRow]:
        """Return up to `most` rows, newest first; `lanes` are the configured ones, the first takes what names none.

        The end of an attempt that was refused out of a queue is left out: its refusal is there already.
        """
        lane_of = self._lanes(lanes)
        rows: list[DecisionRow] = []
        for age, kept in enumerate(self._newest_first()):
            if type(kept.decision) is Ended and kept.decision.outcome is Outcome.YIELDED:
                continue
            row = _row(self._kept_ever - age, kept, lane_of)
            if wanted.takes(row):
                rows.append(row)
                if len(rows) == most:
                    break
        return rows

    def _newest_first(self) -> Iterator[_Kept]:
        return reversed(self._kept)

    def _lanes(self, known: Sequence[str]) -> dict[int, str]:
        """Return the lane of every attempt, as far as its arrival or its end is still kept."""
        lanes: dict[int, str] = {}
        for _, lane, decision in self._kept:
            if type(decision) is Ended:
                lanes[decision.attempt] = decision.lane
            elif lane is not None:
                lanes.setdefault(decision.attempt, lane if lane in known else known[0])
        return lanes


def _row(number: int, kept: _Kept, lanes: dict[int, str]) -> DecisionRow:
    decision = kept.decision
    return DecisionRow(
        number=number,
        at=kept.at,
        kind=type(decision).__name__.lower(),
        word=_word(decision),
        attempt=decision.attempt,
        lane=lanes.get(decision.attempt, ""),
        engine=_engine(decision),
        words=decision_words(decision),
    )


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

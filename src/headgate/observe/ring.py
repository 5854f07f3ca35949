"""The last decisions, kept as the core made them: `why` finds an attempt's here, the page shows the newest.

What is kept is one small tuple per step that decided something. Words are made when somebody asks: by a walk through
the whole ring for one attempt, and through its newest part for the page. A question is rare and a few milliseconds, a
request is neither.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple

from headgate.core.decisions import Decision
from headgate.core.events import Arrived

KEPT_ATTEMPTS: Final = 10_000
"""With some 700 bytes each they hold 7 MB (INV-5)."""
FEWEST_STEPS: Final = 4096
"""Kept for the page even where nobody may ask why; about 1 MB."""
_STEPS_PER_ATTEMPT: Final = 3
"""Arrived, admitted out of the queue, ended: whoever waits for nothing has two."""
MOST_ANSWERED: Final = 16
"""Attempts under one id that are told of, the newest: a client may use its id for every try, or for everything."""
_FINGERPRINT: Final = Arrived._fields.index("fingerprint")

Facts = tuple[Any, ...]
"""An arrival's fields but for its fingerprint, which would keep the body alive."""
Kept = tuple[float, Facts | None, tuple[Decision, ...]]
"""One step: its core time, the facts of the arrival if it was one, and what was decided."""

facts_of: Final = itemgetter(*[index for index in range(len(Arrived._fields)) if index != _FINGERPRINT])
"""Returns what may be kept of an arrival; `arrival_of` takes it. It stands on the path of every request."""


def place_in_facts(field: str) -> int:
    """Return where this field of an arrival stands in its facts."""
    return [each for each in Arrived._fields if each != "fingerprint"].index(field)


def arrival_of(facts: Facts) -> Arrived:
    """Return the arrival again, without its fingerprint."""
    return Arrived._make((*facts[:_FINGERPRINT], None, *facts[_FINGERPRINT:]))


class Step(NamedTuple):
    """What was decided about one attempt at core time `at`; `arrival` where that was the moment of its arrival."""

    at: float
    arrival: Arrived | None
    decisions: tuple[Decision, ...]


class Recorded(NamedTuple):
    """One attempt and its steps, oldest first; `whole` says that its arrival is among them."""

    attempt: int
    steps: tuple[Step, ...]
    whole: bool


class Ring:
    """Keeps the newest steps of about so many attempts, and the ids that clients gave to theirs.

    `boot` begins the ids that the door makes: `boot-N` is attempt N in hexadecimal digits. For 0 attempts `find` finds
    nothing, and the page still has its `FEWEST_STEPS`.
    """

    __slots__ = ("_boot", "_decided", "_names", "_steps", "attempts")

    def __init__(self, boot: str = "", attempts: int = KEPT_ATTEMPTS) -> None:
        self.attempts = attempts
        self._boot = boot + "-"
        self._decided = 0
        self._steps: deque[Kept] = deque(maxlen=max(FEWEST_STEPS, _STEPS_PER_ATTEMPT * attempts))
        self._names: deque[tuple[bytes, int]] = deque(maxlen=attempts)

    def extend(self, steps: Sequence[Kept]) -> None:
        """Append these steps in order."""
        self._steps.extend(steps)
        self._decided += sum([len(decisions) for _, _, decisions in steps])

    def name(self, attempt: int, request_id: bytes) -> None:
        """Take note that a client calls this attempt so."""
        self._names.append((request_id, attempt))

    def newest(self, most: int) -> Iterator[tuple[int, Kept]]:
        """Yield up to so many steps, newest first, each with the number since start of the last decision in it."""
        number = self._decided
        for step in islice(reversed(self._steps), most):
            yield number, step
            number -= len(step[2])

    def find(self, wanted: str) -> list[Recorded]:
        """Return the attempts under a request id or an attempt's number, newest first; none when it is not kept."""
        if not self.attempts:
            return []
        found = [self._recorded(attempt) for attempt in self._numbers(wanted)]
        return [recorded for recorded in found if recorded.steps]

    def _numbers(self, wanted: str) -> list[int]:
        """Return what clients called so, else what the door called so, else the number itself."""
        name = wanted.encode("utf-8", "replace")
        named = [attempt for known, attempt in reversed(self._names) if known == name]
        if named:
            return named[:MOST_ANSWERED]
        own = wanted.startswith(self._boot)
        try:
            return [int(wanted.removeprefix(self._boot), 16 if own else 10)]
        except ValueError:
            return []

    def _recorded(self, attempt: int) -> Recorded:
        steps = tuple(self._of(attempt))
        return Recorded(attempt, steps, bool(steps) and steps[0].arrival is not None)

    def _of(self, attempt: int) -> Iterator[Step]:
        for at, facts, decisions in tuple(self._steps):
            own = tuple([decision for decision in decisions if decision[0] == attempt])
            if own:
                arrived = facts is not None and facts[0] == attempt
                yield Step(at, arrival_of(facts) if facts is not None and arrived else None, own)

"""The last decisions, kept as bytes: `why` finds an attempt's here, the page shows the newest.

Steps come many at a time and are packed with one call. A million small records that live for seconds would scatter what
every later request allocates over the whole memory, and each of its reads would miss the caches. That cost more than
everything else that watches. Records are made again on demand. A question is rare and a few milliseconds, a
request is neither.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from millgate.core.decisions import Decision
from millgate.core.events import Arrived
from millgate.observe.packing import may_name, pack, unpack, unpack_decision

KEPT_ATTEMPTS: Final = 10_000
"""With some 250 bytes each they hold 2.5 MB, and 8 MB if all of them are unusually large (INV-5)."""
FEWEST_STEPS: Final = 4096
"""Kept for the page even where no operator may ask why; 0.4 MB, and 1 MB if all are unusually large."""
_STEPS_PER_ATTEMPT: Final = 3
"""Arrived, admitted out of the queue, ended: an attempt that never waits has two."""
_MOST_BYTES_PER_STEP: Final = 256
"""On average over all that are kept; 100 are usual."""
MOST_ANSWERED: Final = 16
"""Attempts under one id that are told of, the newest: a client may use its id for every try, or for everything."""
MOST_CAUSES: Final = 1_000
"""Attempts of which it is kept why the connection to their engine failed, the newest: an outage has the same one again and again."""
_MOST_CAUSE_CHARS: Final = 200
_KEPT_FIELDS: Final = slice(-4)
_NO_ATTEMPT: Final = 2**63
"""No process counts so far; one step further, and a number could not be packed."""

Facts = tuple[Any, ...]
"""An arrival's fields but for the last four: its prompt's shape, its fingerprint and marks, which would keep the body alive, and its session."""
Kept = tuple[float, Facts | None, tuple[Decision, ...]]
"""One step: its core time, the facts of the arrival if it was one, and what was decided."""
_Batch = tuple[int, bytes, str]
"""How many steps came together, the steps, and their attempts' traces; a plain tuple, which the garbage collector stops looking at."""


def facts_of(arrival: tuple[Any, ...]) -> Facts:
    """Return what may be kept of an arrival; `arrival_of` takes it. It stands on the path of every request."""
    # Called a tuple, an Arrived is cut in C; as itself it would be asked for its items as any object is.
    facts: Facts = arrival[_KEPT_FIELDS]
    return facts


def place_in_facts(field: str) -> int:
    """Return where this field of an arrival stands in its facts."""
    return Arrived._fields.index(field)


def arrival_of(facts: Facts) -> Arrived:
    """Return the arrival again, without its prompt's shape, its fingerprint, its marks and its session."""
    return Arrived._make((*facts, None, None, None, None))


class Step(NamedTuple):
    """What was decided about one attempt at core time `at`; `arrival` where that was the moment of its arrival."""

    at: float
    arrival: Arrived | None
    decisions: tuple[Decision, ...]


class Recorded(NamedTuple):
    """One attempt and its steps, oldest first; `whole` says that its arrival is among them.

    `upstream_ids` are what engines called it, in the order of its tries; `trace` is the id of its trace, empty without one.
    """

    attempt: int
    steps: tuple[Step, ...]
    whole: bool
    upstream_ids: tuple[str, ...] = ()
    trace: str = ""
    cause: str = ""
    """Why the connection to its engine failed, empty where none did."""


class Ring:
    """Keeps the newest steps of at least so many attempts, and the ids that clients and engines gave them.

    `boot` begins the ids that the door makes: `boot-N` is attempt N in hexadecimal digits. For 0 attempts `find` finds
    nothing, and the page still has its `FEWEST_STEPS`. Steps are kept and dropped in the batches in which they came;
    where they are unusually large, there are fewer of them. A batch has some 100 bytes of its own, which weigh as much as
    its steps where they come one by one.
    """

    def __init__(self, boot: str = "", attempts: int = KEPT_ATTEMPTS) -> None:
        self.attempts = attempts
        self._boot = boot + "-"
        self.decided = 0
        """How many decisions there were since start."""
        self.followers: list[Callable[[Sequence[Kept]], None]] = []
        """Are given all steps as they come, while they are still records."""
        self._least_steps = max(FEWEST_STEPS, _STEPS_PER_ATTEMPT * attempts)
        self._batches: deque[_Batch] = deque()
        self._steps = self._bytes = 0
        self._names: deque[tuple[bytes, int]] = deque(maxlen=attempts)
        self._upstream_names: deque[tuple[bytes, int]] = deque(maxlen=attempts)
        self._causes: dict[int, str] = {}

    def extend(self, steps: Sequence[Kept], traced: str = "") -> None:
        """Append these steps in order; each line of `traced` is an attempt's number and the id of its trace."""
        if not steps:
            return
        packed = pack(steps)
        self._batches.append((len(steps), packed, traced))
        self._steps += len(steps)
        self._bytes += len(packed) + len(traced)
        for step in steps:
            self.decided += len(step[2])
        self._drop_oldest()
        for follow in tuple(self.followers):
            follow(steps)

    def _drop_oldest(self) -> None:
        """Forget what need not or may not be kept any longer; the newest batch always stays."""
        batches, most_bytes = self._batches, _MOST_BYTES_PER_STEP * self._least_steps
        while len(batches) > 1:
            steps, packed, traced = batches[0]
            if self._steps - steps < self._least_steps and self._bytes <= most_bytes:
                return
            self._steps -= steps
            self._bytes -= len(packed) + len(traced)
            batches.popleft()

    def name(self, attempt: int, request_id: bytes) -> None:
        """Take note that a client calls this attempt so."""
        self._names.append((request_id, attempt))

    def name_upstream(self, attempt: int, request_id: bytes) -> None:
        """Take note that an engine calls this attempt so."""
        self._upstream_names.append((request_id, attempt))

    def note_cause(self, attempt: int, detail: str) -> None:
        """Take note of why the connection to this attempt's engine failed; of several the last one counts."""
        self._causes[attempt] = detail[:_MOST_CAUSE_CHARS]
        if len(self._causes) > MOST_CAUSES:
            del self._causes[next(iter(self._causes))]

    def newest(self, most: int) -> Iterator[tuple[int, Kept]]:
        """Yield up to so many steps, newest first, each with the number since start of the last decision in it.

        They are those of the moment of the call, however long it takes to ask for them, and are read as they are asked for.
        """
        return _told(list(islice(reversed(self._batches), most)), self.decided, most)

    def find(self, wanted: str) -> list[Recorded]:
        """Return the attempts under a request id, ours or an engine's, a trace's id, or a number, newest first; none when not kept."""
        if not self.attempts:
            return []
        found = [self._recorded(attempt) for attempt in self._numbers(wanted)]
        return [recorded for recorded in found if recorded.steps]

    def _numbers(self, wanted: str) -> list[int]:
        """Return what clients called so, else what engines did, the attempts of a trace, what the door called so, the number itself."""
        name = wanted.encode("utf-8", "replace")
        for names in (self._names, self._upstream_names):
            named = [attempt for known, attempt in reversed(names) if known == name]
            if named:
                return named[:MOST_ANSWERED]
        traced = [int(number) for number, trace in self._traced(wanted) if trace == wanted]
        if traced:
            return traced[: -MOST_ANSWERED - 1 : -1]
        own = wanted.startswith(self._boot)
        try:
            number = int(wanted.removeprefix(self._boot), 16 if own else 10)
        except ValueError:
            return []
        return [number] if 0 <= number < _NO_ATTEMPT else []

    def _recorded(self, attempt: int) -> Recorded:
        steps = tuple(self._of(attempt))
        theirs = tuple([name.decode("latin-1") for name, named in self._upstream_names if named == attempt])
        traces = [trace for number, trace in self._traced(str(attempt)) if number == str(attempt)]
        whole = bool(steps) and steps[0].arrival is not None
        trace = traces[-1] if traces else ""
        return Recorded(attempt, steps, whole, theirs, trace, self._causes.get(attempt, ""))

    def _traced(self, wanted: str) -> Iterator[tuple[str, str]]:
        """Yield attempts' numbers and the ids of their traces where this text stands among them."""
        for _, _, traced in self._batches:
            for line in traced.split("\n") if traced and wanted in traced else ():
                number, _, trace = line.partition(" ")
                yield number, trace

    def _of(self, attempt: int) -> Iterator[Step]:
        for _, packed, _ in self._batches:
            if may_name(packed, attempt):
                for at, facts, decisions in unpack(packed):
                    own = [unpack_decision(fields) for fields in decisions if fields[0] == attempt]
                    if own:
                        arrived = facts is not None and facts[0] == attempt
                        yield Step(at, arrival_of(tuple(facts)) if arrived else None, tuple(own))


def _told(batches: list[_Batch], decided: int, most: int) -> Iterator[tuple[int, Kept]]:
    number = decided
    for at, facts, decisions in islice(_backwards(batches), most):
        made = tuple([unpack_decision(fields) for fields in decisions])
        yield number, (at, None if facts is None else tuple(facts), made)
        number -= len(made)


def _backwards(batches: list[_Batch]) -> Iterator[Any]:
    for _, packed, _ in batches:
        yield from reversed(unpack(packed))

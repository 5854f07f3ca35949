"""What the users saw of every attempt against what the gate wrote down of it, id by id."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from faults.soak.connection import Seen

MOST_TRIES = 4
"""An engine that closes a kept connection without a word is asked once more, and an attempt may take one detour."""


class Told(NamedTuple):
    """One line of the gate's log of attempts; `engine` is the one that it was given to, if it was ever admitted."""

    outcome: str
    reason: str
    engine: str | None = None


class Entry(NamedTuple):
    """What a user knows of one attempt.

    `sure` is False where nobody can say whether the gate has read the request, as after a reset before its first
    word. `saw` is None for a user who left.
    """

    sure: bool
    saw: Seen | None


class Ledger:
    """The users' side of the accounts."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.behaviours: Counter[str] = Counter()

    def compare(self, log: Path, executed: Mapping[str, Sequence[str]]) -> Iterator[str]:
        """Yield what does not agree: lines, what was seen, and what the engines were sent."""
        told: dict[str, Told] = {}
        for line in log.read_bytes().splitlines():
            record = json.loads(line)
            name = record["id"]
            if name in told:
                yield f"{name} has two outcomes: {told[name]}, {record}"
            told[name] = Told(record["outcome"], record.get("reason", ""), record.get("engine"))
        for name in told.keys() - self.entries.keys():
            yield f"{name} was never sent whole, and is {told[name]}"
        for name, entry in self.entries.items():
            yield from _disagreement(name, entry, told.get(name), executed.get(name, ()))

    def matrix(self, log: Path) -> Counter[tuple[str, str]]:
        """Return how often each outcome fell on what was seen."""
        found: Counter[tuple[str, str]] = Counter()
        for line in log.read_bytes().splitlines():
            record = json.loads(line)
            entry = self.entries.get(record["id"])
            found[sight(entry.saw) if entry else "?", record["outcome"]] += 1
        return found


def sight(saw: Seen | None) -> str:
    """Return the word for what a user saw."""
    if saw is None:
        return "left"
    if not saw.status:
        return "no answer"
    if saw.reason:
        return "refused"
    if saw.status != 200:
        return "failed"
    return "whole" if saw.whole else "broken off"


_FITTING = {
    "left": {"good", "late", "yielded", "client_gone", "engine_failed", "bad_request"},
    "no answer": {"client_gone"},
    "refused": {"yielded"},
    "failed": {"engine_failed", "bad_request"},
    "whole": {"good", "late"},
    "broken off": {"engine_failed", "client_gone"},
}
"""The outcomes that agree with what was seen. Who has not read for long is cut, and that is a client gone."""


_NOT_READ = 408


def _disagreement(name: str, entry: Entry, told: Told | None, sent: Sequence[str]) -> Iterator[str]:
    if told is None:
        # The gate says 408 to a request that it could not read whole in time.
        if entry.sure and not (entry.saw is not None and entry.saw.status == _NOT_READ):
            yield f"{name} has no outcome; seen: {entry.saw}"
        return
    if told.outcome not in _FITTING[sight(entry.saw)]:
        yield f"{name} is {told}; seen: {entry.saw}"
    elif entry.saw is not None and entry.saw.reason and told.reason != entry.saw.reason:
        yield f"{name} was refused for {entry.saw.reason} and is {told}"
    if told.engine is None and sent:
        yield f"{name} is {told} and reached an engine: {sent}"
    if len(sent) > MOST_TRIES:
        yield f"{name} reached engines {len(sent)} times: {sent}"

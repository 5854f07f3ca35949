"""Where the records are kept: columns of machine numbers, lines by tenant, and bodies by fingerprint.

A record as an object with its indexes took a kilobyte, and forgetting a hundred thousand of them two seconds; here it
takes about 250 bytes, and the garbage collector sees none of it.
"""

from array import array
from itertools import islice
from math import floor, isnan, nan
from typing import Final

from headgate.core.measure.ranking import Ranking
from headgate.core.tickets.entry import Entry

# Looking at a few equal bodies finds one that may match where the first may not (it was refused just now), and keeps
# an arrival's cost bounded when a whole crowd sends the same bytes.
_EQUALS_TRIED: Final = 8
# Times are sorted in 1/1024 s, ties by number: two million arrivals within a millisecond would be out of order.
TICKS_PER_S: Final = 1024.0
_NUMBER_BITS: Final = 21
_NUMBER_MASK: Final = (1 << _NUMBER_BITS) - 1
# Turns are sorted before numbers: sixteen million arrivals within one turn would be out of order.
TURN_BITS: Final = 24
_TURN_MASK: Final = (1 << TURN_BITS) - 1
# A record's end and its slot share one integer; a million slots are ten times the usual bound.
SLOT_BITS: Final = 20
SLOT_MASK: Final = (1 << SLOT_BITS) - 1
MOST_PLACES: Final = 1 << SLOT_BITS
# Slots are made so many at a time: growing a dozen columns costs as much for one as for all of these, 80 KB.
_SLOTS_MADE: Final = 1024
# Early returns are counted in one byte.
_MOST_COUNTED: Final = 255
# Tenants' equal fingerprints are kept apart by an odd multiple of the golden ratio (Fibonacci hashing, Knuth 6.4), in
# the 60 bits that CPython computes with without an allocation.
_MIX: Final = 0x9E3779B97F4A7C15
_MASK_60: Final = (1 << 60) - 1


def age_key(at: float, number: int) -> int:
    """Return the number that sorts requests by age, equal ages by arrival number."""
    return floor(at * TICKS_PER_S) << _NUMBER_BITS | number & _NUMBER_MASK


def turn_key(turn: int, number: int) -> int:
    """Return the number that sorts requests by turn, equal turns by arrival number."""
    return turn << TURN_BITS | number & _TURN_MASK


class Line:
    """One tenant's share of the records: how many, and its places, oldest request first."""

    __slots__ = ("_mix", "entries", "places", "tenant")

    def __init__(self, tenant: str, number: int) -> None:
        self.tenant = tenant
        self._mix = number * _MIX & _MASK_60
        self.entries = 0
        self.places = Ranking()

    def body_key(self, fingerprint: int) -> int:
        """Return the number by which this tenant's request with this fingerprint is found."""
        return fingerprint ^ self._mix


class Slots:
    """The records, one column per field; a slot without a line is free.

    `turn` is 0 without a place; `place_until` is not kept, `ends` is: the item of the heap of ends that speaks of
    this slot. `due_at` is nan for a record that was promised nothing.
    """

    __slots__ = (
        "due_at",
        "early_returns",
        "ends",
        "fingerprint",
        "first_seen",
        "free",
        "known_from",
        "known_until",
        "line",
        "lined_up_at",
        "number",
        "turn",
    )

    def __init__(self) -> None:
        self.free: list[int] = []
        self.line: list[Line | None] = []
        self.fingerprint, self.early_returns = array("Q"), array("B")
        self.number, self.turn, self.ends = array("q"), array("q"), array("q")
        self.first_seen, self.lined_up_at = array("d"), array("d")
        self.known_from, self.known_until, self.due_at = array("d"), array("d"), array("d")

    def put(self, entry: Entry, line: Line) -> int:
        """Keep a record, still without a turn and an end, and return its slot."""
        if not self.free:
            self._make_slots()
        slot = self.free.pop()
        lined_up_at, due_at = entry.lined_up_at, entry.due_at
        self.line[slot] = line
        self.fingerprint[slot] = entry.fingerprint
        self.number[slot] = entry.number
        self.first_seen[slot] = entry.first_seen
        self.lined_up_at[slot] = entry.first_seen if lined_up_at is None else lined_up_at
        self.known_from[slot] = entry.known_from
        self.known_until[slot] = entry.known_until
        self.due_at[slot] = nan if due_at is None else due_at
        self.early_returns[slot] = min(_MOST_COUNTED, entry.early_returns)
        return slot

    def entry(self, slot: int, line: Line) -> Entry:
        """Return the record as it was left; its `place_until` is not told."""
        due_at = self.due_at[slot]
        return Entry(
            line.tenant,
            self.fingerprint[slot],
            self.first_seen[slot],
            self.number[slot],
            self.known_from[slot],
            self.known_until[slot],
            None if isnan(due_at) else due_at,
            0.0,
            self.lined_up_at[slot],
            self.early_returns[slot],
            self.turn[slot],
            slot,
        )

    def awaited_key(self, slot: int) -> int:
        """Return the key by which equal bodies are tried: when it is expected back, at any time or at its hint."""
        due_at = self.due_at[slot]
        return age_key(self.known_from[slot] if isnan(due_at) else due_at, self.number[slot])

    def age_key(self, slot: int) -> int:
        """Return the key of its place in its tenant's line."""
        return age_key(self.lined_up_at[slot], self.number[slot])

    def turn_key(self, slot: int) -> int:
        """Return the key of its place in the whole line."""
        return turn_key(self.turn[slot], self.number[slot])

    def _make_slots(self) -> None:
        made = len(self.line)
        self.line += [None] * _SLOTS_MADE
        for column in (self.fingerprint, self.number, self.turn, self.ends, self.early_returns):
            column.frombytes(bytes(column.itemsize * _SLOTS_MADE))
        for times in (self.first_seen, self.lined_up_at, self.known_from, self.known_until, self.due_at):
            times.frombytes(bytes(times.itemsize * _SLOTS_MADE))
        self.free += range(made + _SLOTS_MADE - 1, made - 1, -1)


class Bodies:
    """Finds the records of equal requests: the slot of a body that is there once, a ranking for a crowd of equals.

    The dictionary takes 130 bytes for each of different bodies. Sorted in arrays they took 12, and a refusal 2 us more.
    """

    __slots__ = ("_crowds", "_lone", "_slots")

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._lone: dict[int, int] = {}
        self._crowds: dict[int, Ranking] = {}

    def find(self, key: int) -> tuple[int, ...]:
        """Return the slots of this body, due first first, as many as an arrival may try."""
        lone = self._lone.get(key)
        if lone is not None:
            return (lone,)
        crowd = self._crowds.get(key) if self._crowds else None
        return () if crowd is None else tuple(islice(crowd, _EQUALS_TRIED))

    def add(self, key: int, slot: int) -> None:
        """Note that this slot holds this body."""
        crowd = self._crowds.get(key) if self._crowds else None
        if crowd is None:
            lone = self._lone.setdefault(key, slot)
            if lone == slot:
                return
            del self._lone[key]
            crowd = self._crowds[key] = Ranking()
            crowd.add(self._slots.awaited_key(lone), lone)
        crowd.add(self._slots.awaited_key(slot), slot)

    def remove(self, key: int, slot: int) -> None:
        """Note that this slot no longer holds this body; it must."""
        if self._lone.pop(key, None) is not None:
            return
        crowd = self._crowds[key]
        crowd.remove(self._slots.awaited_key(slot))
        if not crowd:
            del self._crowds[key]

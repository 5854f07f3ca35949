"""Where the records are kept: rows of machine numbers, lines by tenant, bodies by fingerprint, and ends by the tick.

A record as an object with its indexes took a kilobyte, and forgetting a hundred thousand of them two seconds; here it
takes about 250 bytes, and the garbage collector sees none of it.
"""

from array import array
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice
from math import ceil, floor, isnan, nan
from struct import Struct
from typing import Final

from millgate.core.measure.ranking import Ranking
from millgate.core.tickets.appointment import ReturnRecord

# What is over is over a sixteenth of a second later at most; promises are kept within half a second.
TICKS_PER_S: Final = 16.0
# So many notes beside live ones are kept in any case: short lists need not be made anew at every end.
_NOTES_FLOOR: Final = 1_000


def tick_of(at: float) -> int:
    """Return the tick that has passed once this time has."""
    return ceil(at * TICKS_PER_S)


def last_tick(now: float) -> int:
    """Return the last tick that has passed at this time."""
    return floor(now * TICKS_PER_S)


def most_notes(count: int) -> int:
    """Return how many notes are kept for so many that may end; beyond it most are stale, and the true ones are noted anew."""
    return 2 * (count + _NOTES_FLOOR)


class Ends:
    """Notes of slots by the tick of their end; a slot may be noted more than once, and its owner knows which is true.

    Those that end together wait in one array, and a heap holds the ticks alone: a heap of a hundred thousand ends took 0.8 us
    to take one out of.
    """

    __slots__ = ("_length", "_slots", "_ticks")

    def __init__(self, notes: Iterable[tuple[int, int]] = ()) -> None:
        self._slots: dict[int, array[int]] = {}
        self._ticks: list[int] = []
        self._length = 0
        for tick, slot in notes:
            self.add(tick, slot)

    def __len__(self) -> int:
        """Return how many notes there are."""
        return self._length

    def add(self, tick: int, slot: int) -> None:
        """Note that this slot ends with this tick."""
        slots = self._slots.get(tick)
        if slots is None:
            slots = self._slots[tick] = array("i")
            heappush(self._ticks, tick)
        slots.append(slot)
        self._length += 1

    def has_any(self, until: int) -> bool:
        """Return whether there may be notes of this tick or an earlier one."""
        return bool(self._ticks) and self._ticks[0] <= until

    def pop(self, until: int) -> int | None:
        """Take out one note of the earliest tick, this one at the latest, and return its slot; None without one."""
        ticks = self._ticks
        while ticks and (first := ticks[0]) <= until:
            slots = self._slots[first]
            if slots:
                self._length -= 1
                return slots.pop()
            heappop(ticks)
            del self._slots[first]
        return None

    def upcoming(self, until: int) -> Iterator[int]:
        """Yield the slots that `pop` would return one after the other."""
        for tick in sorted([each for each in self._ticks if each <= until]):
            yield from reversed(self._slots[tick])


# Looking at a few equal bodies finds one that may match where the first may not (it was refused just now), and keeps
# an arrival's cost bounded when a whole crowd sends the same bytes.
EQUALS_TRIED: Final = 8
# Ages are sorted in 1/1024 s, and of equal ages or turns the numbers: two million arrivals within one would be out of order.
_AGES_PER_S: Final = 1024.0
NUMBER_BITS: Final = 21
# A line of up to so many appointments is searched by reading its rows, newest first, as most that join are; rankings for the
# short lines of ten thousand tenants took 6 MB more. A line that has shrunk to a quarter of it is short again.
_SHORT: Final = 32
# A row is what forgets a record (the keys of its appointment, or 0 without one; known until when; the fingerprint), and
# what `match` wants besides (number, first seen, as old as, lined up, known from, due or told or nan, the share of the line
# expected to return, early returns, the lane, whether told without an appointment, the kind of client). It is written by one call:
# eleven columns took twice as long.
_ROW: Final = Struct("<qqdQqdddddfIIBB")
_ENDING: Final = Struct("<qqdQ")
_KEY: Final = Struct("<q")
_ROW_BYTES: Final = _ROW.size
_FINGERPRINT_BITS: Final = 64


def age_key(at: float, number: int) -> int:
    """Return the number that sorts requests by age, equal ages by arrival number."""
    return turn_key(floor(at * _AGES_PER_S), number)


def turn_key(turn: int, number: int) -> int:
    """Return the number that sorts requests by turn, equal turns by arrival number."""
    return turn << NUMBER_BITS | number % (1 << NUMBER_BITS)


class TenantRecords:
    """One tenant's share of the records: how many, and its appointments, oldest request first.

    A short line keeps the slots alone, whose rows have the keys, a long one a ranking of both.
    """

    __slots__ = ("_long", "_number", "_short", "_slots", "records", "tenant")

    def __init__(self, tenant: str, number: int, slots: "Slots") -> None:
        self.tenant = tenant
        self._number = number
        self._slots = slots
        self.records = 0
        self._short = array("i")
        self._long: Ranking | None = None

    def length(self) -> int:
        """Return how many appointments it has."""
        return len(self._short) if self._long is None else len(self._long)

    def body_key(self, fingerprint: int) -> int:
        """Return the number by which this tenant's request with this fingerprint is found."""
        return self._number << _FINGERPRINT_BITS | fingerprint

    def kept(self) -> None:
        """Count a record more."""
        self.records += 1

    def forgot(self) -> bool:
        """Count a record less; return whether it was the last."""
        self.records -= 1
        return not self.records

    def last(self) -> int | None:
        """Return the slot of the newest request's appointment, None without one."""
        if self._long is not None:
            newest = self._long.last()
            return None if newest is None else newest[1]
        return self._short[-1] if self._short else None

    def after(self, age_key: int) -> int | None:
        """Return the slot of the oldest appointment that is no older than this, None without one."""
        if self._long is not None:
            behind = self._long.after(age_key)
            return None if behind is None else behind[1]
        older = self._older(age_key)
        return None if older == len(self._short) else self._short[older]

    def add(self, age_key: int, slot: int) -> None:
        """Put in an appointment, whose row is written."""
        if self._long is None and len(self._short) == _SHORT:
            self._long = Ranking()
            for each in self._short:
                self._long.add(self._slots.age_key(each), each)
            self._short = array("i")
        if self._long is None:
            self._short.insert(self._older(age_key), slot)
        else:
            self._long.add(age_key, slot)

    def remove(self, age_key: int, slot: int) -> None:
        """Take out an appointment; it must be in."""
        if self._long is None:
            self._short.remove(slot)
            return
        self._long.remove(age_key)
        if len(self._long) <= _SHORT // 4:
            self._short, self._long = array("i", self._long), None

    def without(self, slots: list[int]) -> "TenantRecords":
        """Return a copy that lacks these appointments, each of which is in."""
        other = TenantRecords(self.tenant, self._number, self._slots)
        if self._long is None:
            other._short = array("i", [slot for slot in self._short if slot not in slots])
        else:
            other._long = self._long.without([self._slots.age_key(slot) for slot in slots])
        return other

    def _older(self, age_key: int) -> int:
        short, slots = self._short, self._slots
        older = len(short)
        while older and slots.age_key(short[older - 1]) >= age_key:
            older -= 1
        return older


class Slots:
    """The records, a row each; a slot without a line is free. `ends` is the tick with which its appointment or itself ends."""

    __slots__ = ("_rows", "ends", "free", "line")

    def __init__(self) -> None:
        self.free: list[int] = []
        self.line: list[TenantRecords | None] = []
        self.ends = array("q")
        self._rows = bytearray()

    def put(
        self,
        record: ReturnRecord,
        line: TenantRecords,
        turn_key: int,
        age_key: int,
        as_old_as: float,
        share: float,
    ) -> int:
        """Keep a record with the keys of its appointment (no turn without one), still without an end; return its slot."""
        if not self.free:
            self.free.append(len(self.line))
            self.line.append(None)
            self.ends.append(0)
            self._rows += bytes(_ROW_BYTES)
        slot = self.free.pop()
        due_at, told_at = record.due_at, record.told_at
        awaited_at = told_at if due_at is None else due_at
        self.line[slot] = line
        _ROW.pack_into(
            self._rows,
            slot * _ROW_BYTES,
            turn_key,
            age_key,
            record.known_until,
            record.fingerprint,
            record.number,
            record.first_seen,
            as_old_as,
            record.first_seen if record.lined_up_at is None else record.lined_up_at,
            record.known_from,
            nan if awaited_at is None else awaited_at,
            share,
            record.early_returns,
            record.lane,
            due_at is None and told_at is not None,
            record.kind,
        )
        return slot

    def forget(self, slot: int) -> None:
        """Free a row."""
        self.line[slot] = None
        self.free.append(slot)

    def will_end(self, slot: int, tick: int) -> None:
        """Note the tick with which this record, or its appointment, ends."""
        self.ends[slot] = tick

    def record_of(
        self, slot: int, line: TenantRecords, *, is_open: bool = True, is_shared: bool = False
    ) -> ReturnRecord:
        """Return the record as it was left; its `open_until` is not told. Without `is_open` its appointment is over."""
        row = _ROW.unpack_from(self._rows, slot * _ROW_BYTES)
        turn, _, until, fingerprint, number, first_seen, as_old_as, lined_up_at, known_from = row[:9]
        back_at, share, early, lane, told, kind = row[9:]
        if not is_open:
            turn = 0
        return ReturnRecord(
            line.tenant,
            fingerprint,
            first_seen,
            number,
            known_from,
            until,
            None if told or isnan(back_at) else back_at,
            0.0,
            lined_up_at,
            early,
            turn >> NUMBER_BITS,
            slot,
            as_old_as=as_old_as if turn else first_seen,
            told_at=back_at if told else None,
            kind=kind,
            share=share,
            is_shared=is_shared,
            lane=lane,
        )

    def ending(self, slot: int) -> tuple[int, int, float, int]:
        """Return the keys of its appointment in the whole line (0 without one) and in its tenant's, when it is over, and its fingerprint."""
        turn, age, known_until, fingerprint = _ENDING.unpack_from(self._rows, slot * _ROW_BYTES)
        return turn, age, known_until, fingerprint

    def kind(self, slot: int) -> int:
        """Return how its client was known when it was told."""
        kind: int = _ROW.unpack_from(self._rows, slot * _ROW_BYTES)[-1]
        return kind

    def close(self, slot: int) -> None:
        """Leave it without a turn."""
        _KEY.pack_into(self._rows, slot * _ROW_BYTES, 0)

    def turn_key(self, slot: int) -> int:
        """Return the key of its appointment in the whole line, 0 without one."""
        key: int = _KEY.unpack_from(self._rows, slot * _ROW_BYTES)[0]
        return key

    def age_key(self, slot: int) -> int:
        """Return the key of its appointment in its tenant's line."""
        key: int = _KEY.unpack_from(self._rows, slot * _ROW_BYTES + _KEY.size)[0]
        return key

    def as_old_as(self, slot: int) -> float:
        """Return the age by which queues rank it."""
        age: float = _ROW.unpack_from(self._rows, slot * _ROW_BYTES)[6]
        return age

    def awaited_key(self, slot: int) -> int:
        """Return the key by which equal bodies are tried: when it is expected back, at any time or at its hint."""
        row = _ROW.unpack_from(self._rows, slot * _ROW_BYTES)
        number, known_from, due_at = row[4], row[8], row[9]
        return age_key(known_from if isnan(due_at) else due_at, number)


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
        return () if crowd is None else tuple(islice(crowd, EQUALS_TRIED))

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

"""One refused client: what it was told, and how it is recognised, in a row of 250 bytes; an object took a kilobyte."""

from array import array
from math import floor, inf, isnan, nan
from struct import Struct
from typing import Final

from millgate.core.measure import Ranking
from millgate.core.tickets import KEPT_S, KEPT_SHARE, LATE_SHARE, SOONEST_RETURN_S, TOLERANCE_S, ClientKind


class Appointment:
    """One hint that a client was given: told at `told_at` to return after `hint_s`, which is at `due_at`; core seconds."""

    def __init__(self, told_at: float, hint_s: float) -> None:
        self.told_at: Final = told_at
        self.hint_s: Final = hint_s
        self.due_at: Final = told_at + hint_s

    @property
    def known_from(self) -> float:
        """The earliest time at which an equal body is taken for this client's return."""
        return self.told_at + SOONEST_RETURN_S

    @property
    def opens_at(self) -> float:
        """The earliest return that is on time: 1 s before the hint, of a short hint the middle of the time before it."""
        return max(self.due_at - TOLERANCE_S, (self.known_from + self.due_at) / 2.0)

    @property
    def late_s(self) -> float:
        """How long after the hint a return is still on time: 1 s, or a tenth of the hint if that is longer."""
        return max(TOLERANCE_S, LATE_SHARE * self.hint_s)

    @property
    def lapses_at(self) -> float:
        """The latest return that is on time."""
        return self.due_at + self.late_s

    @property
    def hold_s(self) -> float:
        """How long a client that is due is queued even where nothing else is: until its promise no longer counts as kept."""
        return max(TOLERANCE_S, KEPT_SHARE * (self.due_at - self.known_from))

    def is_due(self, now: float) -> bool:
        """Return whether its time has come: a return now is not early, though it may be late."""
        return now >= self.opens_at

    def is_honoured(self, now: float) -> bool:
        """Return whether a return now is on time: neither early nor so late that the appointment has lapsed."""
        return self.is_due(now) and now <= self.lapses_at

    def is_kept(self, back_at: float, admitted_at: float) -> bool:
        """Return whether the promise to a client that is back at `back_at` counts as kept by this admission."""
        return admitted_at - max(self.due_at, back_at) <= kept_within_s(self.hint_s)

    def known_until(self, deadline: float) -> float:
        """Return until when its client is recognised: its deadline, or a little after the appointment if later."""
        return max(deadline, self.due_at + max(self.late_s, 2.0 * TOLERANCE_S))


def kept_within_s(hint_s: float) -> float:
    """Return how long after a hint an admission still keeps the promise: 0.5 s, or a fifth of the hint."""
    return max(KEPT_S, KEPT_SHARE * hint_s)


def shortest_kept_s(latest_s: float) -> float:
    """Return the shortest hint that an admission after `latest_s` still keeps: the inverse of `kept_within_s`."""
    return min(latest_s - KEPT_S, latest_s / (1.0 + KEPT_SHARE))


class ReturnRecord:
    """One yielded or departed request that may return; absolute core seconds.

    `number` is the arrival number of the request's first known attempt: it orders equal ages. `due_at` is None for a
    record without an appointment; `told_at` is when a client was asked back that has none, as by a quota. `open_until`
    is when its appointment lapses, in the line of engines or of a quota, 0 without one; recognition lasts from
    `known_from` until `known_until`, which is not before `open_until`. `lined_up_at` is the age by which it stands in
    the line: None for `first_seen`, later for a request that came too early too often. `early_returns` counts how often
    it was back before its hint. `turn` is its turn in the fair line, handed in again when the request is refused again;
    0 has one given. `slot` is where `Appointments` keeps it, -1 for what is not kept. `work_s` is how long it will have
    a permit. `as_old_as` is the age by which queues rank it, `first_seen` or older; handed in it is the oldest that it
    may be. `kind` says how its client was known, for its `Attendance`, and `share` which part of the line was expected
    to return when it was told. `is_shared` says that others with the same body are away as well, `lane` is the tag of
    the lane that it was in. `appointment` is what its client was told, whether or not it stands in the line; None where
    it hung up.
    """

    def __init__(
        self,
        tenant: str,
        fingerprint: int,
        first_seen: float,
        number: int,
        known_from: float,
        known_until: float,
        due_at: float | None = None,
        open_until: float = 0.0,
        lined_up_at: float | None = None,
        early_returns: int = 0,
        turn: int = 0,
        slot: int = -1,
        work_s: float = 1.0,
        as_old_as: float = -inf,
        told_at: float | None = None,
        kind: int = ClientKind.FIRST,
        share: float = 1.0,
        is_shared: bool = False,
        lane: int = 0,
    ) -> None:
        self.tenant: Final = tenant
        self.fingerprint: Final = fingerprint
        self.first_seen: Final = first_seen
        self.number: Final = number
        self.known_from: Final = known_from
        self.known_until: Final = known_until
        self.due_at: Final = due_at
        self.open_until: Final = open_until
        self.lined_up_at: Final = lined_up_at
        self.early_returns: Final = early_returns
        self.turn: Final = turn
        self.slot: Final = slot
        self.work_s: Final = work_s
        self.as_old_as: Final = as_old_as
        self.told_at: Final = told_at
        self.kind: Final = kind
        self.share: Final = share
        self.is_shared: Final = is_shared
        self.lane: Final = lane
        back_at = told_at if due_at is None else due_at
        given_at = known_from - SOONEST_RETURN_S
        self.appointment: Final = None if back_at is None else Appointment(given_at, back_at - given_at)

    def is_due(self, now: float) -> bool:
        """Return whether it stands in the line and its time has come."""
        return self.due_at is not None and self.is_agreed(now)

    def is_agreed(self, now: float) -> bool:
        """Return whether a return now is not before it was told to come, whether it stands in the line or not."""
        return self.appointment is not None and self.appointment.is_due(now)

    def is_early(self, now: float) -> bool:
        """Return whether a return at this time breaks the agreement: it was given a hint and is not due."""
        return self.due_at is not None and not self.is_due(now)

    def matches(self, now: float, retry_count: int | None) -> bool:
        """Return whether an equal arrival at this time is this request coming back.

        One that says outright that it is a first attempt, and comes well before its hint or while others with its
        body are away, or one that comes sooner than any client could that was told to wait, is another request with an
        equal body.
        """
        if not self.known_from <= now < self.known_until:
            return False
        return self.due_at is None or retry_count != 0 or (self.is_due(now) and not self.is_shared)


# Ages are sorted in 1/1024 s, and of equal ages or turns the numbers: two million arrivals within one would be out of order.
_AGES_PER_S: Final = 1024.0
NUMBER_BITS: Final = 21
# A line of up to so many appointments is searched by reading its rows, newest first, as most that join are; rankings for the
# short lines of ten thousand tenants took 6 MB more. A line that has shrunk to a quarter of it is short again.
_SHORT: Final = 32
# A row is what forgets a record (the keys of its appointment, or 0 without one; known until when; the fingerprint), and
# what `match` wants besides (number, first seen, as old as, lined up, known from, due or told or nan, the share of the
# line expected to return, early returns, the lane, whether told without an appointment, 2 for one that a quota's line
# has, and last the kind of client).
_ROW: Final = Struct("@qqdQqdddddfIIBB")
_ENDING: Final = Struct("@qqdQ")
_KEY: Final = Struct("@q")
_ROW_BYTES: Final = _ROW.size


def age_key(at: float, number: int) -> int:
    """Return the number that sorts requests by age, equal ages by arrival number."""
    return turn_key(floor(at * _AGES_PER_S), number)


def turn_key(turn: int, number: int) -> int:
    """Return the number that sorts requests by turn, equal turns by arrival number."""
    return turn << NUMBER_BITS | number % (1 << NUMBER_BITS)


class TenantRecords:
    """One tenant's share of the records: how many, and its appointments, oldest request first.

    A short line keeps the slots alone, whose rows have the keys, a long one a ranking of both. Its `mark` tells its bodies from
    those of others. Of the newest it knows the keys: most that join are newer.
    """

    def __init__(self, tenant: str, mark: int, slots: "Slots") -> None:
        self.tenant = tenant
        self._mark = mark
        self._slots = slots
        self.records = 0
        self._newest_age = self._newest_turn = 0
        self._short = array("i")
        self._long: Ranking | None = None

    def length(self) -> int:
        """Return how many appointments it has."""
        return len(self._short) if self._long is None else len(self._long)

    def body_key(self, fingerprint: int) -> int:
        """Return the number by which this tenant's request with this fingerprint is found, hardly ever another's too."""
        return self._mark ^ fingerprint

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

    def turn_at(self, age_key: int) -> int:
        """Return the turn of the next in line for an appointment of this age, one after its last for the newest; it has some."""
        if age_key > self._newest_age:
            return (self._newest_turn >> NUMBER_BITS) + 1
        behind = None if self._long is None else self._long.after(age_key)
        slot = self._short[self._older(age_key)] if behind is None else behind[1]
        return self._slots.turn_key(slot) >> NUMBER_BITS

    def add(self, age_key: int, slot: int, turn_key: int) -> None:
        """Put in an appointment, whose row is written."""
        if age_key > self._newest_age or not self.length():
            self._newest_age, self._newest_turn = age_key, turn_key
        if self._long is None and len(self._short) == _SHORT:
            self._long = Ranking(weighed=False)
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
        else:
            self._long.remove(age_key)
            if len(self._long) <= _SHORT // 4:
                self._short, self._long = array("i", self._long), None
        if age_key == self._newest_age:
            self._look_at_newest()

    def without(self, slots: list[int]) -> "TenantRecords":
        """Return a copy that lacks these appointments, each of which is in."""
        other = TenantRecords(self.tenant, self._mark, self._slots)
        if self._long is None:
            other._short = array("i", [slot for slot in self._short if slot not in slots])
        else:
            other._long = self._long.without([self._slots.age_key(slot) for slot in slots])
        other._look_at_newest()
        return other

    def _look_at_newest(self) -> None:
        newest = self.last()
        if newest is not None:
            self._newest_age, self._newest_turn = self._slots.age_key(newest), self._slots.turn_key(newest)

    def _older(self, age_key: int) -> int:
        short, slots = self._short, self._slots
        older = len(short)
        while older and slots.age_key(short[older - 1]) >= age_key:
            older -= 1
        return older


class Slots:
    """The records, a row each; a slot without a line is free. `ends` is the tick with which its appointment or itself ends."""

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
        awaited_at = record.told_at if record.due_at is None else record.due_at
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
            (record.due_at is None and awaited_at is not None) * (1 + (record.open_until > 0.0)),
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
        """Return the record as it was left; its `open_until` is told by a quota's alone, and late. Without `is_open` its appointment is over."""
        row = _ROW.unpack_from(self._rows, slot * _ROW_BYTES)
        until, fingerprint, number, first_seen, as_old_as, lined_up_at, known_from = row[2:9]
        back_at, share, early, lane, told, kind = row[9:]
        turn: int = row[0] if is_open else 0
        return ReturnRecord(
            line.tenant,
            fingerprint,
            first_seen,
            number,
            known_from,
            until,
            None if told or isnan(back_at) else back_at,
            until if told > 1 else 0.0,
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
        return self._rows[(slot + 1) * _ROW_BYTES - 1]

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

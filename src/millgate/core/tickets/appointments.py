"""The line of refused clients over all tenants, and what is known of each of them."""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice
from math import ceil, floor, inf
from typing import Final

from millgate.core.measure import ALIKE, LOOKED_AT, MOST_WEIGHT, Ranking
from millgate.core.tickets import TOLERANCE_S
from millgate.core.tickets.appointment import (
    NUMBER_BITS,
    ReturnRecord,
    Slots,
    TenantRecords,
    age_key,
    turn_key,
)
from millgate.core.tickets.attendance import Attendance

# The most records that one event forgets: at 2 us each they cost less than one relayed request.
FORGOTTEN_PER_EVENT: Final = 32
# Work is summed up in whole parts of a second, so many each: sums of whole numbers do not drift.
WORK_PARTS: Final = 1 << 20


# What is over is over a sixteenth of a second later at most; promises are kept within half a second.
TICKS_PER_S: Final = 16.0
# So many notes beside live ones are kept in any case: short lists need not be made anew at every end.
_NOTES_FLOOR: Final = 1_000


def last_tick(now: float) -> int:
    """Return the last tick that has passed at this time."""
    return floor(now * TICKS_PER_S)


def most_notes(count: int) -> int:
    """Return how many notes are kept for so many that may end; beyond it most are stale, and the true ones are noted anew."""
    return 2 * (count + _NOTES_FLOOR)


class Ends:
    """Notes of slots by the tick of their end; a slot may be noted more than once, and its owner knows which is true.

    Those that end together wait in one array, and a heap holds the ticks alone: a heap of a hundred thousand ends took 0.8 us
    to take one out of. Of the tick `_begun` so many are `_taken`: to take the first out of an array moves all others.
    """

    def __init__(self, notes: Iterable[tuple[int, int]] = ()) -> None:
        self._slots: dict[int, array[int]] = {}
        self._ticks: list[int] = []
        self._length = self._taken = 0
        self._begun = -1
        for tick, slot in notes:
            self.add(tick, slot)

    def __len__(self) -> int:
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
        """Take out the first note of the earliest tick, this one at the latest, and return its slot; None without one."""
        ticks = self._ticks
        while ticks and (first := ticks[0]) <= until:
            slots = self._slots[first]
            if first != self._begun:
                self._begin(first)
            if self._taken < len(slots):
                self._length -= 1
                self._taken += 1
                return slots[self._taken - 1]
            heappop(ticks)
            del self._slots[first]
            self._taken = 0
        return None

    def _begin(self, tick: int) -> None:
        """Go on with this tick, an earlier one perhaps that was noted after another had begun."""
        if self._taken:
            del self._slots[self._begun][: self._taken]
        self._begun, self._taken = tick, 0

    def upcoming(self, until: int) -> Iterator[int]:
        """Yield the slots that `pop` would return one after the other."""
        for tick in sorted([each for each in self._ticks if each <= until]):
            yield from self._slots[tick][self._taken if tick == self._begun else 0 :]


class Bodies:
    """Finds the records of equal requests: the slot of a body that is there once, a ranking for a crowd of equals.

    The dictionary takes 130 bytes for each of different bodies. Sorted in arrays they took 12, and a refusal 2 us more.
    """

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._lone: dict[int, int] = {}
        self._crowds: dict[int, Ranking] = {}

    def find(self, line: TenantRecords, fingerprint: int) -> list[int]:
        """Return the slots of this tenant's records of this body, due first first, as many as an arrival may try: the first may have been refused just now."""
        key, lines = line.body_key(fingerprint), self._slots.line
        lone = self._lone.get(key)
        if lone is not None:
            return [lone] if lines[lone] is line else []
        crowd = self._crowds.get(key) if self._crowds else None
        return [] if crowd is None else [slot for slot in islice(crowd, LOOKED_AT) if lines[slot] is line]

    def add(self, key: int, slot: int) -> None:
        """Note that this slot holds this body."""
        crowd = self._crowds.get(key) if self._crowds else None
        if crowd is None:
            lone = self._lone.setdefault(key, slot)
            if lone == slot:
                return
            del self._lone[key]
            crowd = self._crowds[key] = Ranking(weighed=False)
            crowd.add(self._slots.awaited_key(lone), lone)
        crowd.add(self._slots.awaited_key(slot), slot)

    def remove(self, key: int, slot: int) -> None:
        """Note that this slot no longer holds this body; it must."""
        if key in self._lone:  # compiled, to look and to delete takes a half of what `pop` does
            del self._lone[key]
            return
        crowd = self._crowds[key]
        crowd.remove(self._slots.awaited_key(slot))
        if not crowd:
            del self._crowds[key]


def as_parts(work_s: float) -> int:
    """Return this work in whole parts of a second, `WORK_PARTS` each; what 32 bits cannot count is as much as they can."""
    return min(MOST_WEIGHT, int(work_s * WORK_PARTS + 0.5))


class LineStanding:
    """Where a request stands in the line: its fair place (1 is next), and the seconds of permits before it.

    Work counts with the `share` of those before it that are expected to return. `first` is the work of the first that
    stand there, next first, in parts of a second, `WORK_PARTS` each, as if all returned.
    """

    def __init__(self, place: int, work_s: float, first: "array[int]", share: float) -> None:
        self.place: Final = place
        self.work_s: Final = work_s
        self.first: Final = first
        self.share: Final = share


class _ByLength:
    """Tenants by the length of their line, as ordered sets: the longest line is found without a search."""

    def __init__(self) -> None:
        self._tenants: list[dict[str, None] | None] = [None]
        self.longest = 0

    def note(self, tenant: str, before: int, after: int) -> None:
        """Note that this tenant's line has become longer or shorter by one."""
        tenants = self._tenants
        if after == len(tenants):
            tenants.append(None)
        known = tenants[before]
        if known is not None and len(known) > 1:
            del known[tenant]
            known = None
        else:
            tenants[before] = None
        others = tenants[after]
        if others is not None:
            others[tenant] = None
        elif after:
            tenants[after] = known or {tenant: None}  # mostly the one that it was in alone
        self.longest = max(self.longest, after)
        if self.longest and tenants[self.longest] is None:
            self.longest -= 1

    def longest_tenant(self) -> str:
        """Return the tenant with the longest line, the one that has had it longest; there is one."""
        longest = self._tenants[self.longest]
        assert longest is not None
        return next(iter(longest))


class Appointments:
    """Every record of every tenant; bounded by `max_records`.

    `records`, `open` appointments and `tenants` that have one count what is kept, what has lapsed and is not yet forgotten
    included; `dropped` counts what the bound cost.
    """

    def __init__(self, max_records: int) -> None:
        self._max_records = max_records
        self.attendance = Attendance()
        self._slots = Slots()
        self._bodies = Bodies(self._slots)
        self._lines: dict[str, TenantRecords] = {}
        self._lines_begun = 0
        self._order = Ranking()
        self._ends = Ends()
        self._swept_at = -inf
        # How long after its hint the latest of the last few was back: a client that is later is not expected any more.
        self._latest_s = inf
        self._by_length = _ByLength()
        self.tenants = self.records = self.open = self.dropped = 0

    def keep_at_most(self, records: int) -> None:
        """Take another bound; it drops nothing that is kept."""
        self._max_records = records

    def knows(self, tenant: str) -> bool:
        """Return whether this tenant has records: only then is a fingerprint worth computing."""
        return tenant in self._lines

    def match(
        self, tenant: str, fingerprint: int, now: float, retry_count: int | None
    ) -> ReturnRecord | None:
        """Return the record that this arrival continues, the one due first, or None; changes nothing."""
        line = self._lines.get(tenant)
        if line is None:
            return None
        slots = self._bodies.find(line, fingerprint)
        over = self._over(now) if slots else []
        # What has lapsed does not count, forgotten or not: looking must find what deciding finds.
        is_shared = len(slots) > 1 and sum([self._slots.ending(slot)[2] > now for slot in slots]) > 1
        for slot in slots:
            record = self._slots.record_of(slot, line, is_open=slot not in over, is_shared=is_shared)
            if record.matches(now, retry_count):
                return record
        return None

    def stand(self, tenant: str, lined_up_at: float, number: int, now: float, most: int = 0) -> LineStanding:
        """Return the fair place (1 is next) of a request of this age, with the work of `most` that stand before it."""
        if not self._order:
            return LineStanding(1, 0.0, array("I"), 1.0)
        age = age_key(lined_up_at, number)
        over = [slot for slot in self._over(now) if self._slots.turn_key(slot)]
        order, own = self._order, self._lines.get(tenant)
        if over:
            order = order.without([self._slots.turn_key(slot) for slot in over])
            if own is not None:
                own = own.without([slot for slot in over if self._slots.line[slot] is own])
        key = turn_key(_turn(own, order, age), number)
        ahead, weight = order.weighed_before(key)
        share = self.attendance.expected([self._slots.kind(slot) for slot in over])
        first = order.weights_before(key, most)
        return LineStanding(ahead + 1, weight / WORK_PARTS * share, first, share)

    def is_as_expected(self, share: float) -> bool:
        """Return whether about as much of the line returns as the `share` that was expected when a hint was given."""
        return abs(self.attendance.expected() - share) <= ALIKE

    def has_room_for(self, tenant: str, now: float) -> bool:
        """Return whether `leave` would find room for a record of this tenant."""
        if self.records < self._max_records:
            return True
        over = self._over(now)
        if not over:
            return self._by_length.longest > _length(self._lines.get(tenant))
        if sum([self._slots.ending(slot)[2] <= now for slot in over], 0) > self.records - self._max_records:
            return True
        lengths = _lengths(self._lines, self._slots, over)
        return max(lengths.values()) > lengths.get(tenant, 0)

    def has_several(self, now: float) -> bool:
        """Return whether more than one tenant has an appointment at this time; what has lapsed is none."""
        if self.tenants < 2 or not (over := self._over(now)):
            return self.tenants > 1
        return sum([length > 0 for length in _lengths(self._lines, self._slots, over).values()]) > 1

    def shares(self, now: float) -> list[float]:
        """Return the shares of clients that return when told, by `ClientKind`, as they are at this time; changes nothing."""
        slots = self._slots
        return self.attendance.shares([slots.kind(slot) for slot in self._over(now) if slots.turn_key(slot)])

    def standing(self, now: float) -> tuple[int, int]:
        """Return how many appointments and records there are at this time, what has lapsed not counted."""
        tick, slots = last_tick(now), self._slots
        if not self._ends.has_any(tick):
            return self.open, self.records
        over = [slots.ending(slot) for slot, end in enumerate(slots.ends) if end <= tick and slots.line[slot]]
        lapsed = sum([turn > 0 for turn, _, _, _ in over], 0)
        return self.open - lapsed, self.records - sum(
            [known_until <= now for _, _, known_until, _ in over], 0
        )

    def leave(self, record: ReturnRecord) -> bool:
        """Keep the record of a request that may come back; False without room. Those without an appointment, as of a quota, have a half of it, and take the place of none."""
        is_promised, most = record.due_at is not None, self._max_records
        most = most if is_promised else min(most, self.open + (most + 1) // 2)
        if self.records >= most and not (is_promised and self._make_room(record.tenant)):
            self.dropped += 1
            return False
        line = self._lines.get(record.tenant)
        if line is None:
            self._lines_begun += 1
            # Mixed into a fingerprint it gives a number that is computed with without an allocation. What two tenants'
            # bodies have in common by chance is looked at.
            mark = self._lines_begun << NUMBER_BITS
            line = self._lines[record.tenant] = TenantRecords(record.tenant, mark, self._slots)
        number = record.number
        age = age_key(record.first_seen if record.lined_up_at is None else record.lined_up_at, number)
        turn, share, ends_at = 0, 1.0, record.known_until
        if record.due_at is not None:
            turn = turn_key(record.turn or _turn(line, self._order, age), number)
            share = self.attendance.expected()
            ends_at = record.open_until
            if not self.attendance.is_shared:  # else it may be back at another replica
                ends_at = min(ends_at, record.due_at + self._latest_s)
        as_old_as = _age_in_turn(record, turn, self._order, self._slots)
        slot = self._slots.put(record, line, turn, age, as_old_as, share)
        self._bodies.add(line.body_key(record.fingerprint), slot)
        line.kept()
        self.records += 1
        if turn:
            likelihood = self.attendance.likelihood(record.tenant, record.kind)
            self.attendance.opens(record.kind)
            self._line_up(slot, line, turn, age, record.work_s * likelihood)
        self._will_end(slot, ends_at)
        return True

    def was_late(self, late_s: float) -> None:
        """Learn how long after its hint a client was back on time; that fades by a tenth with each that was sooner."""
        self._latest_s = max(late_s, min(TOLERANCE_S, self._latest_s) * (1.0 - ALIKE))

    def take(self, record: ReturnRecord) -> None:
        """Take out a record that `match` returned: its client is back."""
        slots, slot = self._slots, record.slot
        line = slots.line[slot]
        if line is not None and slots.record_of(slot, line).number == record.number:
            if slots.turn_key(slot):
                self.attendance.learn(line.tenant, slots.kind(slot), attended=True)
            self._drop(slot, line)

    def work_s(self) -> float:
        """Return how many seconds of a stream all that are away will take, as far as they are expected to return."""
        return self._order.total / WORK_PARTS * self.attendance.expected()

    def withdraw(self, tenant: str, fingerprint: int) -> list[int]:
        """End the appointment of this request, of several equal ones that of the one due first; its record stays.

        Attendance learns nothing: it is about clients that are believed to be there. Return the numbers of those that have none here.
        """
        line, slots = self._lines.get(tenant), self._slots
        found = [] if line is None else self._bodies.find(line, fingerprint)
        for slot in found:
            turn, age, known_until, _ = slots.ending(slot)
            if turn and line is not None:
                self._close(slot, line, turn, age)
                self._will_end(slot, known_until)
                return []
        return [slots.record_of(slot, line).number for slot in found if line is not None]

    def expire(self, now: float) -> None:
        """End the appointments and forget the records whose time is over, at most `FORGOTTEN_PER_EVENT` of them."""
        tick, slots = last_tick(now), self._slots
        if not self._ends.has_any(tick):
            return
        self._swept_at = now
        for _ in range(FORGOTTEN_PER_EVENT):
            slot = self._ends.pop(tick)
            if slot is None:
                return
            line = slots.line[slot]
            if line is None or slots.ends[slot] > tick:
                continue
            turn, age, known_until, fingerprint = slots.ending(slot)
            if turn:
                self.attendance.learn(line.tenant, slots.kind(slot), attended=False)
                self._close(slot, line, turn, age)
            if known_until <= now:
                self._forget(slot, line, fingerprint)
            else:
                self._will_end(slot, known_until)

    def _over(self, now: float) -> list[int]:
        """Return the slots that `expire` would deal with at this time, if it has not; mostly there is none."""
        ends, tick, slots = self._ends, last_tick(now), self._slots
        if now <= self._swept_at or not ends.has_any(tick):
            return []
        noted = islice(ends.upcoming(tick), FORGOTTEN_PER_EVENT)
        return list(dict.fromkeys([slot for slot in noted if slots.line[slot] and slots.ends[slot] <= tick]))

    def _line_up(self, slot: int, line: TenantRecords, turn_key: int, age_key: int, work_s: float) -> None:
        line.add(age_key, slot, turn_key)
        self._order.add(turn_key, slot, as_parts(work_s))
        self.open += 1
        length = line.length()
        self.tenants += length == 1
        self._by_length.note(line.tenant, length - 1, length)

    def _close(self, slot: int, line: TenantRecords, turn_key: int, age_key: int) -> None:
        self.attendance.closes(self._slots.kind(slot))
        self._slots.close(slot)
        self._order.remove(turn_key)
        line.remove(age_key, slot)
        self.open -= 1
        length = line.length()
        self.tenants -= length == 0
        self._by_length.note(line.tenant, length + 1, length)

    def _drop(self, slot: int, line: TenantRecords) -> None:
        """End its appointment, and forget it."""
        turn, age, _, fingerprint = self._slots.ending(slot)
        if turn:
            self._close(slot, line, turn, age)
        self._forget(slot, line, fingerprint)

    def _forget(self, slot: int, line: TenantRecords, fingerprint: int) -> None:
        self._bodies.remove(line.body_key(fingerprint), slot)
        if line.forgot():
            del self._lines[line.tenant]
        self._slots.forget(slot)
        self.records -= 1

    def _will_end(self, slot: int, at: float) -> None:
        slots = self._slots
        if len(self._ends) > most_notes(len(slots.ends)):
            ends = enumerate(slots.ends)
            self._ends = Ends([(end, each) for each, end in ends if slots.line[each] and each != slot])
        tick = ceil(at * TICKS_PER_S)
        slots.will_end(slot, tick)
        self._ends.add(tick, slot)

    def _make_room(self, tenant: str) -> bool:
        """Take the newest appointment of the longest line, unless the newcomer itself would be it."""
        if self._by_length.longest <= _length(self._lines.get(tenant)):
            return False
        line = self._lines[self._by_length.longest_tenant()]
        newest = line.last()
        assert newest is not None
        self._drop(newest, line)
        self.dropped += 1
        return True


def _length(line: TenantRecords | None) -> int:
    return 0 if line is None else line.length()


def _turn(own: TenantRecords | None, order: Ranking, age_key: int) -> int:
    """Return the turn of an appointment of this age: that of the next in its line, or one after its last.

    A tenant without one is served in the turn that is being served.
    """
    if own is None or not own.length():
        first = order.first()
        return 1 if first is None else first[0] >> NUMBER_BITS
    return own.turn_at(age_key)


def _lengths(lines: dict[str, TenantRecords], slots: Slots, over: list[int]) -> dict[str, int]:
    """Return how many appointments each tenant has without those in these slots."""
    gone = Counter(line.tenant for slot in over if slots.turn_key(slot) and (line := slots.line[slot]))
    return {name: line.length() - gone[name] for name, line in lines.items()}


def _age_in_turn(record: ReturnRecord, turn_key: int, order: Ranking, slots: Slots) -> float:
    """Return the age by which queues rank it: that of an older one that stands behind it, so that it keeps its turn."""
    behind = order.after(turn_key) if turn_key else None
    if behind is None:
        return record.first_seen
    return min(record.first_seen, max(record.as_old_as, slots.as_old_as(behind[1])))

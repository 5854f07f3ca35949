"""The line of yielded clients over all tenants, and what is known of everybody in it."""

from collections import Counter
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from math import ceil, floor, inf
from typing import Final

from headgate.core.measure.ranking import Ranking
from headgate.core.tickets.entry import Entry
from headgate.core.tickets.records import (
    MOST_PLACES,
    SLOT_BITS,
    SLOT_MASK,
    TICKS_PER_S,
    TURN_BITS,
    Bodies,
    Line,
    Slots,
    age_key,
    turn_key,
)

# The most records that one event forgets: at 2 us each they cost less than one relayed request.
FORGOTTEN_PER_EVENT: Final = 32
# The heap of ends may hold this many finished records per live one (and a few more) before it is rebuilt.
_STALE_SHARE: Final = 2
_STALE_FLOOR: Final = 1_000
_NO_PLACES: Final = Ranking()


class Places:
    """Every record of every tenant; bounded by `max_entries`, at most `MOST_PLACES`.

    `entries`, `places` and `tenants` (with a place) count what is kept, what has run out and is not yet forgotten
    included; `dropped` counts what the bound cost.
    """

    __slots__ = (
        "_bodies",
        "_by_length",
        "_ends",
        "_lines",
        "_lines_begun",
        "_longest",
        "_max_entries",
        "_order",
        "_slots",
        "_swept_at",
        "dropped",
        "entries",
        "places",
        "tenants",
    )

    def __init__(self, max_entries: int) -> None:
        if max_entries > MOST_PLACES:
            raise ValueError(f"max_entries is {max_entries}, the most is {MOST_PLACES}")
        self._max_entries = max_entries
        self._slots = Slots()
        self._bodies = Bodies(self._slots)
        self._lines_begun = 0
        self._lines: dict[str, Line] = {}
        self._order = Ranking()
        self._ends: list[int] = []
        self._swept_at = -inf
        # Tenants by the length of their line, as ordered sets: the longest line is found without a search.
        self._by_length: dict[int, dict[str, None]] = {}
        self._longest = 0
        self.tenants = self.entries = self.places = self.dropped = 0

    def knows(self, tenant: str) -> bool:
        """Return whether this tenant has entries: only then is a fingerprint worth computing."""
        return tenant in self._lines

    def match(self, tenant: str, fingerprint: int, now: float, retry_count: int | None) -> Entry | None:
        """Return the entry that this arrival continues, the one due first, or None; changes nothing."""
        line = self._lines.get(tenant)
        if line is None:
            return None
        for slot in self._bodies.find(line.body_key(fingerprint)):
            entry = self._slots.entry(slot, line)
            if entry.matches(now, retry_count):
                return entry
        return None

    def rank(self, tenant: str, lined_up_at: float, number: int, now: float) -> int:
        """Return the fair place (1 is next) of a request of this age among those who are expected back."""
        if not self._order:
            return 1
        order, own = self._order, self._places_of(tenant)
        over = self._over(now)
        if over and (over := [slot for slot in over if self._slots.turn[slot]]):
            mine = [slot for slot in over if (line := self._slots.line[slot]) and line.tenant == tenant]
            order = order.without([self._slots.turn_key(slot) for slot in over])
            own = own.without([self._slots.age_key(slot) for slot in mine])
        turn = self._turn(own, order, age_key(lined_up_at, number))
        return order.before(turn_key(turn, number)) + 1

    def has_room_for(self, tenant: str, now: float) -> bool:
        """Return whether `leave` would find room for a record of this tenant."""
        if self.entries < self._max_entries:
            return True
        over = self._over(now)
        if not over:
            return self._longest > len(self._places_of(tenant))
        if any(self._slots.known_until[slot] <= now for slot in over):
            return True
        gone = Counter(line.tenant for slot in over if (line := self._slots.line[slot]))
        lengths = {name: len(line.places) - gone[name] for name, line in self._lines.items()}
        return max(lengths.values()) > lengths.get(tenant, 0)

    def standing(self, now: float) -> tuple[int, int]:
        """Return how many places and entries there are at this time, what has run out not counted."""
        limit, slots = _first_after(now), self._slots
        if not self._ends or self._ends[0] >= limit:
            return self.places, self.entries
        over = [slot for slot, item in enumerate(slots.ends) if slots.line[slot] and item < limit]
        places = sum(slots.turn[slot] > 0 for slot in over)
        return self.places - places, self.entries - sum(slots.known_until[slot] <= now for slot in over)

    def leave(self, entry: Entry) -> bool:
        """Keep the record of a request that may come back; False when the bound leaves no room for it."""
        if self.entries >= self._max_entries and not self._make_room(entry.tenant):
            self.dropped += 1
            return False
        line = self._lines.get(entry.tenant)
        if line is None:
            self._lines_begun += 1
            line = self._lines[entry.tenant] = Line(entry.tenant, self._lines_begun)
        slot = self._slots.put(entry, line)
        self._bodies.add(line.body_key(entry.fingerprint), slot)
        line.entries += 1
        self.entries += 1
        if entry.due_at is None:
            self._will_end(slot, entry.known_until)
        else:
            self._line_up(line, slot, entry)
            self._will_end(slot, entry.place_until)
        return True

    def take(self, entry: Entry) -> None:
        """Take out a record that `match` returned: its owner is back."""
        slots, slot = self._slots, entry.slot
        line = slots.line[slot]
        if line is not None and slots.number[slot] == entry.number:
            self._forget(slot, line)

    def expire(self, now: float) -> None:
        """End the places and forget the entries whose time is over, at most `FORGOTTEN_PER_EVENT` of them."""
        heap, limit = self._ends, _first_after(now)
        if not heap or heap[0] >= limit:
            return
        self._swept_at = now
        for _ in range(FORGOTTEN_PER_EVENT):
            if not heap or heap[0] >= limit:
                return
            item = heappop(heap)
            slot = item & SLOT_MASK
            line = self._slots.line[slot]
            if line is None or self._slots.ends[slot] != item:
                continue
            if self._slots.known_until[slot] <= now:
                self._forget(slot, line)
            else:
                self._end_place(slot, line)
                self._will_end(slot, self._slots.known_until[slot])

    def _over(self, now: float) -> list[int]:
        """Return the slots that `expire` would deal with at this time, if it has not; mostly there is none."""
        if now <= self._swept_at or not self._ends or self._ends[0] >= _first_after(now):
            return []
        return list(self._next_over(now))

    def _next_over(self, now: float) -> Iterator[int]:
        """Yield the slots that `expire` would deal with at this time, one at least: a look ahead changes nothing.

        The heap is walked best first, as popping would, without popping.
        """
        heap, limit, ends = self._ends, _first_after(now), self._slots.ends
        frontier = [(heap[0], 0)]
        before = None
        for _ in range(FORGOTTEN_PER_EVENT):
            if not frontier or frontier[0][0] >= limit:
                return
            item, index = heappop(frontier)
            slot = item & SLOT_MASK
            if item != before and ends[slot] == item and self._slots.line[slot]:
                yield slot
            before = item
            for child in (2 * index + 1, 2 * index + 2):
                if child < len(heap):
                    heappush(frontier, (heap[child], child))

    def _places_of(self, tenant: str) -> Ranking:
        line = self._lines.get(tenant)
        return _NO_PLACES if line is None else line.places

    def _turn(self, own: Ranking, order: Ranking, age_key: int) -> int:
        """Return the turn of a place of this age: that of the next in its line, or one after its last.

        A tenant without a place is served in the turn that is being served.
        """
        last = own.last()
        if last is not None and last[0] < age_key:  # a newcomer, as most are
            return self._slots.turn[last[1]] + 1
        if (behind := own.after(age_key)) is not None:
            return self._slots.turn[behind[1]]
        first = order.first()
        return 1 if first is None else first[0] >> TURN_BITS

    def _line_up(self, line: Line, slot: int, entry: Entry) -> None:
        lined_up_at, number, turn = entry.lined_up_at, entry.number, entry.turn
        age = age_key(entry.first_seen if lined_up_at is None else lined_up_at, number)
        if not turn:
            turn = self._turn(line.places, self._order, age)
        self._slots.turn[slot] = turn
        line.places.add(age, slot)
        self._order.add(turn_key(turn, number), slot)
        self.places += 1
        length = len(line.places)
        self.tenants += length == 1
        self._longest = max(self._longest, length)
        self._sort_by_length(line.tenant, length - 1, length)

    def _end_place(self, slot: int, line: Line) -> None:
        slots = self._slots
        self._order.remove(slots.turn_key(slot))
        line.places.remove(slots.age_key(slot))
        slots.turn[slot] = 0
        self.places -= 1
        length = len(line.places)
        self.tenants -= length == 0
        self._sort_by_length(line.tenant, length + 1, length)
        if self._longest not in self._by_length:
            self._longest -= 1

    def _sort_by_length(self, tenant: str, before: int, after: int) -> None:
        by_length = self._by_length
        if before:
            del by_length[before][tenant]
            if not by_length[before]:
                del by_length[before]
        if after:
            by_length.setdefault(after, {})[tenant] = None

    def _forget(self, slot: int, line: Line) -> None:
        if self._slots.turn[slot]:
            self._end_place(slot, line)
        self._bodies.remove(line.body_key(self._slots.fingerprint[slot]), slot)
        line.entries -= 1
        if not line.entries:
            del self._lines[line.tenant]
        self._slots.line[slot] = None
        self._slots.free.append(slot)
        self.entries -= 1

    def _will_end(self, slot: int, at: float) -> None:
        heap, ends = self._ends, self._slots.ends
        if len(heap) > _STALE_SHARE * (self.entries + _STALE_FLOOR):
            ends[slot] = 0
            heap[:] = [item for line, item in zip(self._slots.line, ends, strict=True) if line and item]
            heapify(heap)
        ends[slot] = item = ceil(at * TICKS_PER_S) << SLOT_BITS | slot
        heappush(heap, item)

    def _make_room(self, tenant: str) -> bool:
        """Take the newest place of the longest line, unless the newcomer itself would be it."""
        if self._longest <= len(self._places_of(tenant)):
            return False
        line = self._lines[next(iter(self._by_length[self._longest]))]
        newest = line.places.last()
        assert newest is not None
        self._forget(newest[1], line)
        self.dropped += 1
        return True


def _first_after(now: float) -> int:
    """Return what every item of the heap of ends that is over at this time is smaller than."""
    return (floor(now * TICKS_PER_S) + 1) << SLOT_BITS

"""The places of yielded clients: who was told to come back when, and who is that now coming back.

A yield with a hint is a promise, and keeping it takes two memories of one small record:

- the *entry* recognises the request when it returns (same tenant, same fingerprint), so that it gets its
  `first_seen` back and is not a stranger at the end of the line;
- the *place* counts it, until it returns, among those who are ahead of later hints.

An arrival takes out the match that was due first (among equal bodies hints follow age, so that is the oldest, and
it is who is most likely to be back now); if it is refused again it leaves a new record with its old `first_seen`
and its old number, so its place in the line is as old as the request. Hang-ups before the first token leave an entry
without a place: somebody who presses refresh is the same user, but was promised nothing.

Places are fair among tenants: a tenant's place counts its own line, times the number of tenants in line. The
memory is one global bound; beyond it the longest line loses its newest place (INV-5).
"""

from bisect import bisect_left, insort
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

# A return at most this early, or due, may be held up to `DUE_HOLD_S` even where nothing else is held.
EARLY_S = 1.0
DUE_HOLD_S = 1.0
# Nobody who was told to wait (hints start at 0.1 s) is back sooner than this: equal bodies that arrive together
# are different requests.
SOONEST_RETURN_S = 0.1
# Looking at a few equal bodies finds one that may match where the first may not (it was refused just now), and keeps an arrival's cost bounded when a whole crowd sends the same bytes.
_EQUALS_TRIED = 8
# The heap of ends may hold this many finished records per live one (and a few more) before it is rebuilt.
_STALE_SHARE = 2
_STALE_FLOOR = 1_000


class Entry:
    """One yielded or departed request that may return; absolute core seconds.

    `number` is the arrival number of the request's first known attempt: it orders equal `first_seen`. `due_at` is
    None for an entry without a place (it was promised nothing). `place_until` ends the place; recognition lasts
    from `known_from` until `known_until`, which is not before `place_until`.
    """

    __slots__ = (
        "due_at",
        "fingerprint",
        "first_seen",
        "known_from",
        "known_until",
        "live",
        "number",
        "place_until",
        "tenant",
    )

    def __init__(
        self,
        tenant: str,
        fingerprint: int,
        first_seen: float,
        number: int,
        known_from: float,
        known_until: float,
        due_at: float | None = None,
        place_until: float = 0.0,
    ) -> None:
        self.tenant = tenant
        self.fingerprint = fingerprint
        self.first_seen = first_seen
        self.number = number
        self.known_from = known_from
        self.known_until = known_until
        self.due_at = due_at
        self.place_until = place_until
        self.live = True

    @property
    def awaited_at(self) -> float:
        """When it is expected back: at its hint, or any time if it was promised nothing."""
        return self.known_from if self.due_at is None else self.due_at

    def is_due(self, now: float) -> bool:
        """Return whether its promise has (nearly) come: at most `EARLY_S` before the hint, or after it.

        Of a short hint half is early enough: somebody who is told 0.8 s and is back within 0.2 s has not waited.
        """
        if self.due_at is None:
            return False
        return now >= self.due_at - min(EARLY_S, (self.due_at - self.known_from) / 2)

    def matches(self, now: float, retry_count: int | None) -> bool:
        """Return whether an equal arrival at this time is this request coming back.

        One that comes well before its hint and says outright that it is a first attempt, or that comes sooner
        than anybody could who was told to wait, is another request with an equal body.
        """
        if not self.known_from <= now < self.known_until:
            return False
        return self.due_at is None or self.is_due(now) or retry_count != 0


# Records by a time and their number; no two live records share a number, so entries are never compared.
_Sorted = list[tuple[float, int, Entry]]


class _Line:
    """One tenant's records: entries by fingerprint, due first first, and places, oldest request first."""

    __slots__ = ("entries", "places")

    def __init__(self) -> None:
        self.entries: dict[int, _Sorted] = {}
        self.places: _Sorted = []


_NO_LINE = _Line()


class _Standing(NamedTuple):
    """The whole line at one time: tenants in it, places and entries in all, the longest line, one tenant's places."""

    tenants: int
    places: int
    entries: int
    longest: int
    own: _Sorted


class Places:
    """Every record of every tenant; bounded by `max_entries`."""

    __slots__ = (
        "_by_end",
        "_by_length",
        "_lines",
        "_max_entries",
        "_pushes",
        "dropped",
        "entries",
        "places",
        "tenants",
    )

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._lines: dict[str, _Line] = {}
        self._by_end: list[tuple[float, int, Entry]] = []
        # Tenants by the length of their line, as ordered sets: the longest line is found without a search.
        self._by_length: list[dict[str, None]] = []
        self._pushes = 0
        self.tenants = 0
        self.entries = 0
        self.places = 0
        self.dropped = 0

    def knows(self, tenant: str) -> bool:
        """Return whether this tenant has entries: only then is a fingerprint worth computing."""
        return tenant in self._lines

    def match(self, tenant: str, fingerprint: int, now: float, retry_count: int | None) -> Entry | None:
        """Return the entry that this arrival continues, the one due first, or None; changes nothing."""
        same = self._lines.get(tenant, _NO_LINE).entries.get(fingerprint, ())
        for _, _, entry in islice(same, _EQUALS_TRIED):
            if entry.matches(now, retry_count):
                return entry
        return None

    def rank(self, tenant: str, first_seen: float, number: int, now: float) -> int:
        """Return the fair place (1 is next) of a request of this age among those who are expected back.

        Every tenant in line has an equal share, so an own place counts as many as there are tenants, but nobody
        is behind more than everybody.
        """
        if not self._by_end:
            return 1
        tenants, places, _, _, own = self._line(tenant, now)
        if not own:
            return 1 + tenants
        place = (bisect_left(own, (first_seen, number)) + 1) * tenants
        return place if place <= places else places + 1

    def has_room_for(self, tenant: str, now: float) -> bool:
        """Return whether `leave` would find room for a record of this tenant."""
        if self.entries < self._max_entries:
            return True
        line = self._line(tenant, now)
        return line.entries < self._max_entries or line.longest > len(line.own)

    def standing(self, now: float) -> tuple[int, int]:
        """Return how many places and entries there are at this time, what has run out not counted."""
        line = self._line("", now)
        return line.places, line.entries

    def leave(self, entry: Entry) -> bool:
        """Keep the record of a request that may come back; False when the bound leaves no room for it."""
        if self.entries >= self._max_entries and not self._make_room(entry.tenant):
            self.dropped += 1
            return False
        line = self._lines.get(entry.tenant)
        if line is None:
            line = self._lines[entry.tenant] = _Line()
        same = line.entries.get(entry.fingerprint)
        if same is None:
            line.entries[entry.fingerprint] = [(entry.awaited_at, entry.number, entry)]
        else:
            insort(same, (entry.awaited_at, entry.number, entry))
        self.entries += 1
        if entry.due_at is not None:
            insort(line.places, (entry.first_seen, entry.number, entry))
            self._lengthened(entry.tenant, len(line.places))
        self._will_end(entry.known_until if entry.due_at is None else entry.place_until, entry)
        return True

    def take(self, entry: Entry) -> None:
        """Take the record out: its owner is back."""
        if entry.live:
            self._end_place(entry)
            self._forget(entry)

    def expire(self, now: float) -> None:
        """End every place and every entry whose time is over."""
        heap = self._by_end
        while heap and heap[0][0] <= now:
            entry = heappop(heap)[2]
            if not entry.live:
                continue
            if entry.known_until <= now:
                self.take(entry)
            else:
                self._end_place(entry)
                self._will_end(entry.known_until, entry)

    def _will_end(self, at: float, entry: Entry) -> None:
        heap = self._by_end
        if len(heap) > _STALE_SHARE * (self.entries + _STALE_FLOOR):
            heap[:] = [item for item in heap if item[2].live]
            heapify(heap)
        self._pushes += 1
        heappush(heap, (at, self._pushes, entry))

    def _end_place(self, entry: Entry) -> None:
        if entry.place_until == 0.0:
            return
        entry.place_until = 0.0
        places = self._lines[entry.tenant].places
        del places[bisect_left(places, (entry.first_seen, entry.number))]
        self._shortened(entry.tenant, len(places))

    def _forget(self, entry: Entry) -> None:
        line = self._lines[entry.tenant]
        same = line.entries[entry.fingerprint]
        del same[bisect_left(same, (entry.awaited_at, entry.number))]
        if not same:
            del line.entries[entry.fingerprint]
        if not line.entries:
            del self._lines[entry.tenant]
        entry.live = False
        self.entries -= 1

    def _lengthened(self, tenant: str, length: int) -> None:
        self.places += 1
        by_length = self._by_length
        if length > len(by_length):
            by_length.append({})
        by_length[length - 1][tenant] = None
        if length > 1:
            del by_length[length - 2][tenant]
        else:
            self.tenants += 1

    def _shortened(self, tenant: str, length: int) -> None:
        self.places -= 1
        by_length = self._by_length
        del by_length[length][tenant]
        if length:
            by_length[length - 1][tenant] = None
        else:
            self.tenants -= 1
        if not by_length[-1]:
            by_length.pop()

    def _make_room(self, tenant: str) -> bool:
        """Take the newest place of the longest line, unless the newcomer itself would be it."""
        if len(self._by_length) <= len(self._lines.get(tenant, _NO_LINE).places):
            return False
        longest = next(iter(self._by_length[-1]))
        self.take(self._lines[longest].places[-1][2])
        self.dropped += 1
        return True

    def _line(self, tenant: str, now: float) -> _Standing:
        """Return the whole line and this tenant's part of it at this time.

        Only a look ahead (`explain`, `snapshot`) finds what has run out and is not yet forgotten, and counts anew.
        """
        if not self._by_end or self._by_end[0][0] > now:
            own = self._lines.get(tenant, _NO_LINE).places
            return _Standing(self.tenants, self.places, self.entries, len(self._by_length), own)
        places = {
            name: [each for each in line.places if each[2].place_until > now]
            for name, line in self._lines.items()
        }
        lengths = [len(own) for own in places.values() if own]
        entries = sum(
            each[2].known_until > now
            for line in self._lines.values()
            for same in line.entries.values()
            for each in same
        )
        longest = max(lengths, default=0)
        return _Standing(len(lengths), sum(lengths), entries, longest, places.get(tenant, []))

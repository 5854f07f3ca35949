"""The places of yielded clients: who was told to come back when, and who is that now coming back.

A yield with a hint is a promise, and keeping it takes two memories of one small record:

- the *entry* recognises the request when it returns (same tenant, same fingerprint), so that it gets its
  `first_seen` back and is not a stranger at the end of the line;
- the *place* counts it, until it returns, among those who are ahead of later hints.

An arrival takes the oldest match out; if it is refused again it leaves a new record with its old `first_seen`,
so its place in the line is as old as the request. Hang-ups before the first token leave an entry without a place:
somebody who presses refresh is the same user, but was promised nothing.

Places are fair among tenants: a tenant's place counts its own line, times the number of tenants in line. The
memory is one global bound; beyond it the longest line loses its newest place (INV-5).
"""

from bisect import bisect_left, insort
from collections import deque
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

# A return at most this early, or due, may be held up to `DUE_HOLD_S` even where nothing else is held.
EARLY_S = 1.0
DUE_HOLD_S = 1.0
# Nobody who was told to wait (hints start at 0.1 s) is back sooner than this: equal bodies that arrive together
# are different requests.
SOONEST_RETURN_S = 0.1
# Among equal bodies the oldest is due first; looking at a few more finds one that may match where it may not,
# and keeps an arrival's cost bounded when a whole crowd sends the same bytes.
_EQUALS_TRIED = 8
# The heap of ends may hold this many finished records per live one (and a few more) before it is rebuilt.
_STALE_SHARE = 2
_STALE_FLOOR = 1_000


class Entry:
    """One yielded or departed request that may return; absolute core seconds.

    `due_at` is None for an entry without a place (it was promised nothing). `place_until` ends the place;
    recognition lasts from `known_from` until `known_until`.
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
        known_from: float,
        known_until: float,
        number: int,
    ) -> None:
        self.tenant = tenant
        self.fingerprint = fingerprint
        self.first_seen = first_seen
        self.known_from = known_from
        self.known_until = known_until
        self.number = number
        self.due_at: float | None = None
        self.place_until = 0.0
        self.live = True

    def is_due(self, now: float) -> bool:
        """Return whether its promise has (nearly) come: at most `EARLY_S` before the hint, or after it."""
        return self.due_at is not None and now >= self.due_at - EARLY_S

    def matches(self, now: float, retry_count: int | None) -> bool:
        """Return whether an equal arrival at this time is this request coming back.

        One that comes well before its hint and says outright that it is a first attempt, or that comes sooner
        than anybody could who was told to wait, is another request with an equal body.
        """
        if not self.known_from <= now <= self.known_until:
            return False
        return self.due_at is None or self.is_due(now) or retry_count != 0


class _Line(NamedTuple):
    """One tenant's records: entries by fingerprint (oldest first), places by age of the request."""

    entries: dict[int, deque[Entry]]
    places: list[tuple[float, int, Entry]]


_NO_LINE = _Line({}, [])


class Places:
    """Every record of every tenant; bounded by `max_entries`."""

    __slots__ = (
        "_by_end",
        "_lines",
        "_longest",
        "_max_entries",
        "_number",
        "dropped",
        "entries",
        "places",
        "tenants",
    )

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._lines: dict[str, _Line] = {}
        self._by_end: list[tuple[float, int, Entry]] = []
        self._number = 0
        self._longest = ""
        self.tenants = 0
        self.entries = 0
        self.places = 0
        self.dropped = 0

    def knows(self, tenant: str) -> bool:
        """Return whether this tenant has entries: only then is a fingerprint worth computing."""
        return tenant in self._lines

    def match(self, tenant: str, fingerprint: int, now: float, retry_count: int | None) -> Entry | None:
        """Return the oldest entry that this arrival continues, or None; changes nothing."""
        same = self._lines.get(tenant, _NO_LINE).entries.get(fingerprint, ())
        for entry in islice(same, _EQUALS_TRIED):
            if entry.matches(now, retry_count):
                return entry
        return None

    def rank(self, tenant: str, first_seen: float) -> int:
        """Return the fair place (1 is next) of a request of this age among those who are expected back."""
        places = self._lines.get(tenant, _NO_LINE).places
        if not places:
            return 1 + self.tenants
        return (bisect_left(places, (first_seen, 0)) + 1) * self.tenants

    def leave(
        self, tenant: str, fingerprint: int, first_seen: float, known_from: float, known_until: float
    ) -> Entry | None:
        """Record a request that may come back; None when the bound leaves no room for it.

        A record gets its place with `promise`.
        """
        if self.entries >= self._max_entries and not self._make_room(tenant):
            self.dropped += 1
            return None
        self._number += 1
        entry = Entry(tenant, fingerprint, first_seen, known_from, known_until, self._number)
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = _Line({}, [])
        line.entries.setdefault(fingerprint, deque()).append(entry)
        self.entries += 1
        self._will_end(known_until, entry)
        return entry

    def promise(self, entry: Entry, due_at: float, place_until: float) -> None:
        """Give the entry a place in its tenant's line until `place_until`."""
        places = self._lines[entry.tenant].places
        if not places:
            self.tenants += 1
        insort(places, (entry.first_seen, entry.number, entry))
        if len(places) > len(self._lines.get(self._longest, _NO_LINE).places):
            self._longest = entry.tenant
        self.places += 1
        entry.due_at = due_at
        entry.place_until = place_until
        if place_until < entry.known_until:
            self._will_end(place_until, entry)

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
            if entry.place_until <= now:
                self._end_place(entry)
            if entry.known_until <= now:
                self.take(entry)

    def _will_end(self, at: float, entry: Entry) -> None:
        heap = self._by_end
        if len(heap) > _STALE_SHARE * (self.entries + _STALE_FLOOR):
            heap[:] = [item for item in heap if item[2].live]
            heapify(heap)
        heappush(heap, (at, entry.number, entry))

    def _end_place(self, entry: Entry) -> None:
        if entry.place_until == 0.0:
            return
        entry.place_until = 0.0
        places = self._lines[entry.tenant].places
        del places[bisect_left(places, (entry.first_seen, entry.number))]
        self.places -= 1
        if not places:
            self.tenants -= 1

    def _forget(self, entry: Entry) -> None:
        line = self._lines[entry.tenant]
        same = line.entries[entry.fingerprint]
        same.remove(entry)
        if not same:
            del line.entries[entry.fingerprint]
        if not line.entries:
            del self._lines[entry.tenant]
        entry.live = False
        self.entries -= 1

    def _make_room(self, tenant: str) -> bool:
        """Take the newest place of the longest line, unless the newcomer itself would be it."""
        places = self._lines.get(self._longest, _NO_LINE).places
        if not places or tenant == self._longest:
            return False
        self.take(places[-1][2])
        self.dropped += 1
        return True
